"""The example of docs/own_environment.md runs as a user would run it, and documented rewards pay right answers alone."""

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from gymnasium.utils.env_checker import check_env
from support.documents import DOCUMENTS, ROOT, blocks, text
from support.documents import tutorial_block as block

from temper.envs.all_tasks import generate_tasks
from temper.envs.binding import bind_all
from temper.envs.catalog import environment, make_drawing_env, make_env
from temper.envs.core.definition import USUAL_CHANCE
from temper.envs.core.functions import load_function
from temper.envs.core.task import Task
from temper.envs.core.turn_text import turn_text
from temper.envs.source import split_of
from temper.envs.transcript import score_turns
from temper.orchestrator.__main__ import main
from temper.orchestrator.loop.mixture import Mixture, open_mixture
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.tools.new_env.writing import Form, write_env

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
    check_env(make_drawing_env(environment(MODULE)), skip_render_check=True)
    own = environment(MODULE)
    self_test = pytest.importorskip("temper.orchestrator.tools.debug.grading.envcheck").self_test
    report = self_test(own, generate_tasks(own, 8, seed=0))
    assert report.passed, [(finding.name, finding.against) for finding in report.findings]
    assert {split_of(task) for task in generate_tasks(own, 64, seed=0)} == {"train", "heldout"}


PAGES = (*DOCUMENTS, *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "notebooks").glob("*.ipynb")))
RIGHT = ("{}", "**{}**", "{}.00", "\\({}\\)", "\\boxed{{{}}}", "The answer is {}.", "Answer: {}", "${}$")
WRONG = (
    "1{}",
    "{}1",
    "-{}",
    "0.{}",
    "{} or 1",
    "1 {}",
    "{}, 1",
    "1\n{}",
    "1. 7\n2. {}",
    "\\boxed{{1}} \\boxed{{{}}}",
    "",
    "It is.",
)


def _code(page: str) -> list[str]:
    if not page.endswith(".ipynb"):
        return blocks(page, "python")
    return ["".join(cell["source"]) for cell in json.loads(text(page))["cells"] if cell["cell_type"] == "code"]


def _rewards(page: str) -> Iterator[tuple[str, str]]:
    """The name of each function of a page whose first argument is the answer, and its module without other statements."""
    for code in _code(page):
        kept: list[ast.stmt] = [p for p in ast.parse(code).body if isinstance(p, ast.ImportFrom | ast.FunctionDef)]
        for part in kept:
            if isinstance(part, ast.FunctionDef) and [one.arg for one in part.args.args[:1]] == ["answer"]:
                yield part.name, ast.unparse(ast.Module(kept, []))


REWARDS = [(page, *found) for page in PAGES for found in _rewards(page)]


def test_the_pages_with_a_reward_are_found() -> None:
    assert {"README.md", "docs/own_environment.md", "docs/your_model.md"} < {page for page, *_ in REWARDS}
    assert any(page.endswith(".ipynb") for page, *_ in REWARDS)


@pytest.mark.parametrize(("page", "name", "module"), REWARDS, ids=[f"{page}:{name}" for page, name, _ in REWARDS])
def test_a_reward_of_a_page_pays_right_answers_alone(page: str, name: str, module: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(module)
    reward = load_function(f"{file}:{name}")

    def paid(answer: str, number: str) -> bool:
        returned = reward(answer, defaultdict(lambda: number, question="Case 17?"))
        return sum(returned.values() if isinstance(returned, dict) else [returned]) > USUAL_CHANCE

    for number in ("72", "1000"):
        assert [form for form in RIGHT if not paid(form.format(number), number)] == []
        assert [form for form in WRONG if paid(form.format(number), number)] == []
    assert paid("1,000", "1000")
    assert not paid("Case 17?", "72")

    rows = [
        {"question": f"Case {n - 2000}?"} | dict.fromkeys(("reference", "answer", "solution"), str(n))
        for n in range(2017, 4017, 50)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["env", "check", "--reward", f"{file}:{name}", "--data", f"{tmp_path}/rows.jsonl"]) == 0


SAID = ("**{}**", "{}.", "Answer: {}", "\\boxed{{{}}}", "<answer>{}</answer>")
MISSED = ("1{}", "{}1", "x{}", "{} or 1", "x, {}, 1", "x\n{}\n1", "", "It is.")


@pytest.mark.parametrize("form", [None, *get_args(Form)])
def test_an_environment_of_the_page_or_a_template_pays_right_answers_alone(
    form: Form | None, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(example)
    name, file = MODULE, example / "run.yaml"
    if form is not None:
        name, file = f"own_{form}", example / f"own_{form}" / "run.yaml"
        write_env(name, form, example)
    mixture = open_mixture(bind_all(load_config(file, ["name=mine"]).envs), {}, split="train", seed=0)
    for _ in range(5):
        task = mixture.task(mixture.draw())
        reference = environment(name).reference
        assert reference is not None
        *before, right = reference(task)

        def paid(answer: str, task: Task = task, before: list[str] = before) -> bool:
            return score_turns(task, [*before, answer]).reward == 1.0

        assert [said for said in SAID if not paid(said.format(right))] == []
        assert [said for said in MISSED if paid(said.format(right))] == []
        assert not paid(str(task.messages[-1]["content"]))
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]
