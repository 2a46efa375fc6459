"""docs/metrics.md explains each metric that a run may write, and nothing else."""

import math
from pathlib import Path

import pytest
import torch
from support.metric_names import PLACES, explained, unexplained
from unit.orchestrator.stages.test_step_metrics import answer, group, measured

from temper.learner.losses.config import LossConfig
from temper.learner.losses.dpo import dpo_loss
from temper.learner.losses.policy import PolicyTerms, policy_loss
from temper.orchestrator.evaluation.scores import env_result

ROOT = Path(__file__).resolve().parents[2]
CODE = "".join(
    path.read_text(encoding="utf-8")
    for package in ("envs", "rollout", "learner", "orchestrator")
    for path in (ROOT / package).rglob("*.py")
)
PAIR = torch.tensor([[-1.0, -2.0]])


def test_what_a_step_measures_is_explained() -> None:
    names = measured(group(0, 5, answer((5, 6), (7, 7)), answer((6,))))
    assert len(names) > 50
    assert unexplained(names) == []


def test_what_a_loss_measures_is_explained() -> None:
    loss = LossConfig(kl_coefficient=0.1, entropy_bonus=0.1)
    policy = policy_loss(
        PAIR.clone().requires_grad_(),
        torch.ones_like(PAIR),
        torch.ones_like(PAIR),
        PAIR,
        terms=PolicyTerms.of(loss),
        ref_BT=PAIR,
        entropy_BT=torch.ones_like(PAIR),
    )
    pairs = dpo_loss(PAIR[0], PAIR[0], PAIR[0], PAIR[0])
    names = {f"train/{name}" for sums in (policy.sums, pairs.sums) for name in sums} - {"train/weight"}
    assert {"train/kl", "train/policy_entropy", "train/margin"} < names
    assert unexplained(names) == []


def test_what_an_evaluation_measures_is_explained() -> None:
    found = env_result([group(0, 5, answer((5, 6)))], asked=None)
    assert math.isfinite(found["avg_at_k"])
    assert unexplained(f"math/{name}" for name in found) == []


def test_a_name_that_is_not_there_is_found() -> None:
    assert unexplained(["train/loss", "env/math/parts/correct", "train/lose", "env/a/b/c"]) == [
        "env/a/b/c",
        "train/lose",
    ]


@pytest.mark.parametrize("name", explained())
def test_an_explained_metric_is_one_of_the_code(name: str) -> None:
    last = [part for part in name.split("/") if not PLACES.fullmatch(part)][-1]
    last = PLACES.split(last)[-1].removeprefix("_")
    # a literal, the end of one, or a field of a dataclass
    made = (f'"{last}"', f'/{last}"', f'}}{last}"', f"{last}:", f'"{last.removesuffix("_s")}"')
    assert any(form in CODE for form in made)
