"""The screenshot of docs/viewing.md: `PYTHONPATH=tests .venv/bin/python -m support.doc_pictures` draws it again.

It shows a small run with fixed answers, which the environment scores. So it needs Chromium, but no training.
"""

import random
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from support.browsing import launched
from support.played_run import played_group, sums_of, write_empty_run
from support.viewed_run import training

from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import UNLIMITED
from temper.envs.core.turn_text import call_message, turn_text
from temper.learner.losses.advantages import dr_grpo
from temper.orchestrator.__main__ import main
from temper.orchestrator.run.folder import RunDir
from temper.rollout.trajectory_json import write_groups

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "view.png"
WIDTH, HEIGHT = 1400, 860
GROUPS, ANSWERS, SEED = 8, 8, 2


def write_pictured_run(folder: Path) -> RunDir:
    """A run named demo with step 30 of `rl`: groups of answers to sums, with a tool or without, right, wrong or cut off."""
    draw, run = random.Random(SEED), write_empty_run(folder)
    source = sums_of(run)
    groups, rows = [], []
    for number in range(GROUPS):
        task = source.task(number)
        texts = [list(_turns(task, draw)) for _ in range(ANSWERS)]
        made = played_group(90 + number, task, texts, version=29, thinking=UNLIMITED)
        for one, advantage in zip(made.trajectories, dr_grpo(made.rewards_G), strict=True):
            rows.append(training(one.model_tokens, version=30, advantage=round(advantage, 3)))
        groups.append(made)
    write_groups(run.trajectory_file("rl", 30), groups, training=rows)
    return run


def _turns(task: Task, draw: random.Random) -> Iterator[str]:
    answer, kind = int(task.spec["answer"]), draw.choice(("sum", "tool", "slip", "guess", "long"))
    steps, question = str(task.spec["steps"]), str(task.messages[-1]["content"]).removesuffix("=?")
    if kind == "tool":
        call = call_message("calculator", {"expression": steps.split()[0] if "x" in question else question})
        yield turn_text({"role": "assistant", "content": "", "tool_calls": [call]}, thinks=True)
    if kind == "long":
        yield f"{steps}, or {steps}, or again {steps}"
    else:
        said = answer if kind in ("sum", "tool") else answer + draw.choice((-10, -1, 1, 10))
        thoughts = {"sum": steps, "slip": steps, "tool": f"it is {said}", "guess": "about"}
        yield f"{thoughts[kind]}</think>\n\\boxed{{{said}}}"


def draw_view(run: RunDir, picture: Path) -> None:
    """Draw the page of the run's newest step, light and in the fixed size."""
    page_file = run.root / "view.html"
    assert main(["view", str(run.root), "--out", str(page_file)]) == 0
    with launched() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(page_file.absolute().as_uri())
        page.wait_for_selector("body[data-ready]")
        page.screenshot(path=picture)


if __name__ == "__main__":
    with TemporaryDirectory() as folder, chdir(folder):  # so that the page shows short paths
        draw_view(write_pictured_run(Path("runs/demo")), PICTURE)
    print(PICTURE)
