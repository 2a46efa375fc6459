"""The example of docs/own_environment.md runs as a user would run it."""

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gymnasium.utils.env_checker import check_env
from support.documents import blocks, text
from support.documents import tutorial_block as block

from temper.envs.all_tasks import generated_tasks
from temper.envs.binding import bind_all
from temper.envs.catalog import drawing_env, environment, make_env
from temper.envs.core.turn_text import turn_text
from temper.envs.source import split_of
from temper.envs.transcript import score_turns
from temper.orchestrator.__main__ import main
from temper.orchestrator.loop.mixture import Mixture, open_mixture
from temper.orchestrator.pipeline.config import load_config

MODULE = "backwards"
LONGEST_EXAMPLE = 40


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with the example's module and configuration, in front of the Python path."""
    (tmp_path / f"{MODULE}.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "run.yaml").write_text(block("yaml"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(MODULE, None)


def mixture_of(folder: Path) -> Mixture:
    envs = load_config(folder / "run.yaml", ["name=mine"]).envs
    assert list(envs) == ["spelling"]
    return open_mixture(bind_all(envs), {}, split="train", seed=0)


def test_the_example_is_short_and_its_configuration_is_one_line(example: Path) -> None:
    assert len(block("python").splitlines()) <= LONGEST_EXAMPLE
    assert block("yaml").splitlines()[0] == "envs:"
    assert len(block("yaml").splitlines()) == 2


def test_the_example_is_opened_by_its_configuration_and_scores_right_and_wrong_answers(example: Path) -> None:
    mixture = mixture_of(example)
    own = environment(MODULE)
    assert own.reference is not None
    assert own.demonstrate is not None
    assert own.negatives is not None
    for _ in range(20):
        task = mixture.task(mixture.draw())
        assert (task.env.name, task.env.entry_point) == ("spelling", f"{MODULE}:Backwards")
        assert score_turns(task, own.reference(task)).reward == 1.0
        env = make_env(task.env)
        env.reset(options={"task": task})
        *_, said = own.demonstrate(task)
        assert env.step(turn_text(said, thinks=True))[1:4] == (1.0, True, False)
        for name, turns in own.negatives(task):
            assert score_turns(task, turns).reward == 0.0, name


def test_the_example_passes_gymnasiums_checks_and_envcheck(example: Path) -> None:
    check_env(drawing_env(environment(MODULE)), skip_render_check=True)
    own = environment(MODULE)
    self_test = pytest.importorskip("temper.orchestrator.tools.debug.grading.envcheck").self_test
    report = self_test(own, generated_tasks(own, 8, seed=0))
    assert report.passed, [(finding.name, finding.against) for finding in report.findings]
    assert {split_of(task) for task in generated_tasks(own, 64, seed=0)} == {"train", "heldout"}


REWARD = re.compile(r"def \w+\(answer")
REWARDS: dict[str, Callable[[int], dict[str, str]]] = {
    "README.md": lambda number: {"answer": f"So it is {number}.\n#### {number}"},
    "docs/own_environment.md": lambda number: {"solution": f"{number}"},
    "docs/notebooks/first_run.ipynb": lambda number: {"answer": f"{number}"},
    "docs/your_model.md": lambda number: {"answer": f"{number}"},
}
"""The pages with a reward, and the fields of the rows that it reads."""


def _code(page: str) -> list[str]:
    if not page.endswith(".ipynb"):
        return blocks(page, "python")
    return ["".join(cell["source"]) for cell in json.loads(text(page))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("page", REWARDS)
def test_no_wrong_answer_earns_the_reward_of_a_page(page: str, tmp_path: Path) -> None:
    (found,) = (part for part in _code(page) if REWARD.search(part))
    module = ast.parse(found)
    kept: list[ast.stmt] = [part for part in module.body if isinstance(part, ast.ImportFrom | ast.FunctionDef)]
    (tmp_path / "mine.py").write_text(ast.unparse(ast.Module(kept, [])))
    numbers = range(2017, 4017, 50)
    rows = [{"question": f"Case {n - 2000}?", "reference": str(n)} | REWARDS[page](n) for n in numbers]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (name,) = (part.name for part in kept if isinstance(part, ast.FunctionDef) and part.args.args[0].arg == "answer")
    reward = ["--reward", f"{tmp_path}/mine.py:{name}", "--data", f"{tmp_path}/rows.jsonl"]
    assert main(["env", "check", *reward]) == 0
