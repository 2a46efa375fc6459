"""Asynchronous runs resume their partial episodes after a stop or a kill."""

import signal
import time
from pathlib import Path
from statistics import fmean

import pytest
from support.fault_job import Job, rows, runs
from support.fault_report import saw
from support.healing import audited

from temper.orchestrator.run.checkpoint import place, steps
from temper.orchestrator.run.loop_state import EPISODES_FILE
from temper.orchestrator.run.metrics_log import MetricsRow
from temper.rollout.codec import from_json
from temper.rollout.episodes.resume import PartialGroup

CONFIG = """
stages: [init, rl]
seed: 7
envs:
  lake: {kind: gym, thinking: false, max_turns: 6}
  math: {thinking: true}
model: {fresh: {pattern: M-*-, hidden_size: 64, intermediate_size: 128, attention_heads: 2, key_value_heads: 1}}
learner: {threads: 1, threads_during_generation: 1, micro_batch_tokens: 4096}
rl:
  {groups_per_step: 2, group_size: 4, max_replaced_groups: 0, max_lag: 3, over_sampling: 1.0, checkpoint_every: 2, steps: 8,
   thinking: {budget: 0.5, budgets: [24]}, loss: {token_range: [0.5, 5], entropy_bonus: 1.0e-6}}
rollout:
  workers: 1
  limits: {turn_tokens: 120, total_tokens: 1000}
  engine: {max_model_len: 1024, max_sequences: 4}
"""
"""Four sequences at once for 16 episodes: the learner waits for the engine while some wait and some are in a turn. An
entropy bonus computes the tokens of groups without an advantage too, so that every token is compared with the engine.
"""
STOPPED, KILLED, LAST = 3, 7, 8


def in_flight(job: Job) -> tuple[int, int, int]:
    """Return the partial groups of the newest checkpoint: finished answers, partial episodes, and their tokens."""
    checkpoints = job.run / "checkpoints" / "rl"
    lines = (place(checkpoints, steps(checkpoints)[-1]) / EPISODES_FILE).read_text("utf-8").splitlines()
    groups = [from_json(PartialGroup, line) for line in lines]
    episodes = [one for group in groups for one in group.unfinished.values()]
    return sum(len(group.finished) for group in groups), len(episodes), sum(one.tokens for one in episodes)


def _lags(measured: list[MetricsRow]) -> str:
    largest = max(row.values["train/lag_max"] for row in measured)
    mean = fmean(row.values["train/lag_mean"] for row in measured)
    return f"groups were trained {largest:.0f} versions behind at most and {mean:.2f} in the mean"


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_episodes_in_flight_go_on_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    config = tmp_path / "flight.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    with runs(config) as found:
        job = found.start("job")
        job.wait_until(job.reached("rl", STOPPED), "steps before a stop")
        time.sleep(0.5 * rows(job.run, "rl")[-1].values["time/step_s"])  # in the middle of the next one
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 130, job.output
        stopped = in_flight(job)
        job = found.start("job")
        job.wait_until(job.reached("rl", KILLED), "steps before a kill")
        job.kill()
        killed = in_flight(job)
        job = found.start("job")
        assert job.end() == 0, job.output
        measured = rows(job.run, "rl")
        verdict = audited(job.run)
    assert [row.step for row in measured] == list(range(1, LAST + 1))
    went_on = sum(row.values["rollout/episodes_resumed"] for row in measured)
    assert 0 < went_on <= stopped[1] + killed[1]  # those of the last steps are not waited for
    assert sum(row.values["rollout/episodes_restarted"] for row in measured) == 0
    assert max(row.values["train/mismatch_abs"] for row in measured) < 0.1
    assert max(row.values["train/lag_max"] for row in measured) <= 3  # rl.max_lag
    left_over = sum(row.values["buffer/left_over"] for row in measured)
    assert left_over > 0
    saw(
        "in-flight",
        f"a stop left {stopped[0]} answers and {stopped[2]} tokens of {stopped[1]} unfinished episodes in the checkpoint, "
        f"a kill {killed[0]} and {killed[2]} of {killed[1]}: {went_on:.0f} went on and were trained, none began again; "
        f"{left_over:.0f} times a group was left to a later step, {_lags(measured)}; "
        f"audit: {verdict}",
    )
