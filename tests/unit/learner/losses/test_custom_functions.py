"""The algorithms, custom loss and custom advantage of docs/algorithms.md load and train."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.refusals import refuses

from temper.learner.losses.advantages import advantage_function, has_nonzero_advantage
from temper.learner.losses.config import LossConfig
from temper.learner.losses.policy import PolicyTerms, policy_loss
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.pipeline.config import load_config

PAGE = Path(__file__).parents[4] / "docs" / "algorithms.md"
NEEDED = ["name=mine", "envs.math.share=1.0"]
NAN = float("nan")


def block(heading: str, language: str) -> str:
    """The first block of code in a language after a heading."""
    found = re.search(rf"^#+ {heading}\n.*?```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None, f"{PAGE.name} has no {language} block after the heading: {heading}"
    return found[1]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder, on the Python path as the current folder is, with the example's module and configuration."""
    (tmp_path / "mine.py").write_text(block("A loss or an advantage of your own", "python"), encoding="utf-8")
    (tmp_path / "run.yaml").write_text(block("A loss or an advantage of your own", "yaml"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in ("mine", "other"):
        sys.modules.pop(module, None)


def rl_of(text: str, folder: Path) -> RlConfig:
    (folder / "given.yaml").write_text(text, encoding="utf-8")
    return load_config(folder / "given.yaml", NEEDED).section(RlConfig)


def test_the_algorithms_of_the_page_load(tmp_path: Path) -> None:
    loss = rl_of(block("Algorithms", "yaml"), tmp_path).loss
    correction = PolicyTerms.of(loss).correction
    assert (correction.token_range, correction.cap, correction.floor) == ((0.5, 5.0), 0.0, 0.0)


def test_the_example_trains_by_its_own_loss_and_advantage(mine: Path) -> None:
    loss = load_config(mine / "run.yaml", NEEDED).section(RlConfig).loss
    assert advantage_function(loss.advantage)([1.0, 0.0, 0.0]) == [1.0, 0.0, 0.0]
    assert has_nonzero_advantage([1.0, 0.0, 0.0], kind=loss.advantage)
    assert not has_nonzero_advantage([1.0, 1.0, 1.0], kind=loss.advantage)

    logprobs_BT = torch.tensor([[NAN, -1.0, -2.0]]).requires_grad_()
    result = policy_loss(
        logprobs_BT,
        torch.tensor([[0.0, 1.0, 1.0]]),
        torch.tensor([[0.0, 2.0, -1.0]]),
        torch.tensor([[NAN, -1.0, -2.0]]),  # the engine's: every weight is 1
        terms=PolicyTerms.of(loss),
        old_BT=torch.tensor([[NAN, -1.0, -2.0]]),
    )
    # r = 1: 4 sigmoid(0) = 2, whose derivative by log pi is 1
    assert result.total.item() == pytest.approx(-2 * 2.0 + 2 * 1.0)
    result.total.backward()
    assert logprobs_BT.grad is not None
    assert logprobs_BT.grad[0].tolist() == pytest.approx([0.0, -2.0, 1.0])


CUSTOM = "from temper.learner.losses.surrogates import Surrogate\ndef f(tokens, *, clip):\n"


@pytest.mark.parametrize(
    ("setting", "name", "source", "reason"),
    [
        ("surrogate", "nowhere.f", "", "importing 'nowhere' .* failed: ModuleNotFoundError"),
        ("surrogate", "other.f", "import nowhere", "importing 'other' .* No module named 'nowhere'"),
        ("surrogate", "other.g", "def f(): ...", "the module 'other' has no function 'g'"),
        ("surrogate", "other.f", "def f(tokens): ...", "failed when called as .*unexpected keyword argument 'clip'"),
        ("surrogate", "other.f", "def f(tokens, *, clip):\n return tokens.logprobs_BT", "it returned Tensor"),
        (
            "surrogate",
            "other.f",
            f"{CUSTOM} x = tokens.logprobs_BT.sum(-1)\n return Surrogate(loss_BT=x, ratio_BT=x, clipped_BT=x)",
            r"the shapes were \[\(2,\)",
        ),
        (
            "surrogate",
            "other.f",
            f"{CUSTOM} x = tokens.old_BT\n return Surrogate(loss_BT=x, ratio_BT=x, clipped_BT=x)",
            "its loss has no gradient",
        ),
        ("advantage", "other.f", "def f(rewards):\n return sum(rewards)", "returned 1.5"),
        ("advantage", "other.f", "def f(rewards):\n return rewards[1:]", "one finite number per"),
        ("advantage", "other.f", "def f(rewards, scale):\n return rewards", "missing 1 required positional argument"),
    ],
)
def test_an_unfit_function_is_refused_with_the_configuration(
    mine: Path, setting: str, name: str, source: str, reason: str
) -> None:
    (mine / "other.py").write_text(source, encoding="utf-8")
    with pytest.raises(ValueError, match=f"loss.{setting}='{name}'.*{reason}"):
        rl_of(f"rl: {{loss: {{{setting}: {name}}}}}", mine)


def test_a_wrong_advantage_names_itself_and_the_rewards(mine: Path) -> None:
    (mine / "other.py").write_text("def f(rewards):\n return rewards if rewards[0] else []", encoding="utf-8")
    kind = LossConfig(advantage="other.f").advantage
    with refuses("loss.advantage='other.f'", "[]", "[0.0, 1.0]"):
        advantage_function(kind)([0.0, 1.0])
