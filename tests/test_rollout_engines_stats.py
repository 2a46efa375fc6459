"""What several engines did, taken together."""

from rollout.engines.protocol import EngineStats


def test_requests_and_tokens_add_up_over_engines_and_the_use_of_the_cache_is_their_mean() -> None:
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
    )
    idle = EngineStats()
    assert EngineStats.together([one, one, idle]) == EngineStats(
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
    )
    assert EngineStats.together([]) == idle
