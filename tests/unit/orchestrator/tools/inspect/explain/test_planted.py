"""Four collapses planted in real runs, each named first by `temper explain`; and healthy runs, on which nothing is named.

A run is a tiny model, real engines and a real learner, 40 steps of reinforcement learning after 80 of supervised fine-tuning:
one to two minutes, four on a busy machine. What is planted stands in an override alone; `explain` sees what the run has left.
"""

from collections.abc import Iterator

import pytest
from support.fault_job import Runs, runs

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.explain.explanation import Explanation, explain

LONGEST_S = 1200.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(LONGEST_S + 60)]
CONFIG = """
stages: [init, sft, rl]
seed: 1
envs:
  words: {kind: planted_env, thinking: false}
model: {fresh: {pattern: M-*-, hidden_size: 64, intermediate_size: 128, attention_heads: 2, key_value_heads: 1}}
learner: {threads: 1, threads_beside: 1, micro_batch_tokens: 4096}
sft: {steps: 80, batch_size: 32, checkpoint_every: 80, optim: {learning_rate: 3.0e-3, warmup_steps: 5}}
rl: {steps: 40, groups_per_step: 8, group_size: 8, max_drops: 0, checkpoint_every: 40, optim: {learning_rate: 2.0e-4}}
rollout:
  limits: {turn_tokens: 16, total_tokens: 256}
  engine: {max_model_len: 256, max_sequences: 64}
"""
PLANTS = {
    "learning rate too high": "rl.optim.learning_rate=3e-2",
    "broken reward": "envs.words.options.plant=reward",
    "stale engine": "envs.words.options.plant=stale",
    "wrong precision": "rollout.engine.dtype=bfloat16",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    config = tmp_path_factory.mktemp("planted") / "planted.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    with runs(config) as made:
        yield made


def explained(made: Runs, name: str, *overrides: str) -> Explanation:
    job = made.start(name, *overrides, environment={"OMP_NUM_THREADS": "1"})
    assert job.end(limit_s=LONGEST_S) == 0, job.output
    return explain(RunDir(job.run))


@pytest.mark.parametrize("collapse", PLANTS)
def test_a_planted_collapse_is_named_first(made: Runs, collapse: str) -> None:
    told = explained(made, collapse.replace(" ", "-"), PLANTS[collapse])
    assert [one.name for one in told.diagnoses][:1] == [collapse], told
    assert told.diagnoses[0].score > 0.5
    assert told.shares is not None
    assert 0 < told.shares.groups[0].share <= 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_a_healthy_run_nothing_is_named_and_nothing_bends(made: Runs, seed: int) -> None:
    told = explained(made, f"healthy-{seed}", f"seed={seed}")
    assert told.diagnoses == ()
    assert told.bends_of_learning == []
    assert told.steps == 40
