"""The combined statistics of several engines."""

from temper.rollout.engines.protocol import EngineStats
from temper.rollout.engines.vllm_stats import StatsRecorder


def test_stats_of_several_engines_are_combined() -> None:
    one = EngineStats(
        passes=10,
        running=8.0,
        waiting=1.0,
        cache_use=0.5,
        prompt_tokens=30,
        cached_tokens=9,
        sampled_tokens=80,
        preemptions=2,
        drafted_tokens=12,
        accepted_tokens=5,
        busy_s=1.5,
    )
    idle = EngineStats()
    assert EngineStats.combine([one, one, idle]) == EngineStats(
        passes=20,
        running=16.0,
        waiting=2.0,
        cache_use=1.0 / 3,
        prompt_tokens=60,
        cached_tokens=18,
        sampled_tokens=160,
        preemptions=4,
        drafted_tokens=24,
        accepted_tokens=10,
        busy_s=3.0,
    )
    assert EngineStats.combine([]) == idle


def test_an_engine_is_busy_with_requests_unless_paused() -> None:
    now = [0.0]
    stats = StatsRecorder(clock=lambda: now[0])

    def at(second: float) -> None:
        now[0] = second

    at(3.0)  # idle until here
    with stats.at_work():
        at(5.0)
        with stats.at_work():
            at(6.0)
            stats.set_paused(paused=True)
            at(9.0)
            stats.set_paused(paused=False)
            at(10.0)
        assert stats.take().busy_s == 3.0 + 1.0
        at(12.0)
    at(20.0)
    assert stats.take().busy_s == 2.0
    assert stats.take().busy_s == 0.0
