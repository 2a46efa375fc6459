"""The page docs/recipes.md, made of the configurations' heads and the report of `temper doctor --plan`.

Write it by `PYTHONPATH=tests .venv/bin/python -m support.recipe_pages`.
Only the head of a recipe holds its facts, as comments: `badge:`, a description, and `Change first:`.
The badge is `planned for HARDWARE`, or `run DATE on HARDWARE: PLACE`, a heading with a picture and a table of its results.
Without a picture it is `run DATE on HARDWARE, without a curve: PLACE`.
Plans read the models' `config.json` as `public_models` has them, so that no network is needed.
"""

import json
import re
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

import yaml
from support.public_models import PUBLIC

from temper.orchestrator.cluster.machines import Hardware, Machine
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import Site
from temper.orchestrator.pipeline.estimate.limits import run_limits, size
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.tools.preflight.plan.page import hours_text
from temper.orchestrator.tools.preflight.plan.plan import planned_config, site_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "recipes.md"
RECIPES = (
    *(f"configs/{name}.yaml" for name in ("demo", "budget_demo", "budget_study", "questions")),
    *(f"configs/recipes/smollm2/{name}.yaml" for name in ("sums", "instructions", "tools", "calls")),
    "configs/hybrid_10m.yaml",
    *(f"configs/recipes/{name}.yaml" for name in ("one_gpu_small", "one_gpu", "served", "sft", "dpo", "distill")),
    *(f"configs/recipes/{name}.yaml" for name in ("eight_gpus", "experts", "two_hosts")),
)
"""In the order of the page: from the smallest hardware to the largest."""
BADGE = re.compile(
    r"planned for (?P<planned>.+)"
    r"|run (?P<day>\d{4}-\d\d-\d\d) on (?P<ran>[^:,]+)(?P<bare>, without a curve)?: (?P<place>\S+#\S+)"
)
CORES = re.compile(r"(\d+) CPU cores and (\d+) GB")
TEACHERS = ("distill",)
"""Stages that name a second model."""
INTRODUCTION = """# Recipes

Start from the recipe whose task and hardware are closest to yours. Each has its plan: the memory it needs, and how long a step
takes.

```
temper run configs/demo.yaml
```

This runs the first recipe. A badge shows the state of each:

- **run**: trained to the end on the named hardware, with a link to the results.
- **planned**: not run on this hardware yet. The figures are a [plan](hardware.md#planning), so the hours are a range.

`make test-long` takes two steps of each recipe for GPUs on a CPU, with a small model of the same family. The profile sets the
settings that a file omits ([hardware](hardware.md)), so each recipe runs on other GPUs too. Answers are assumed
to be half as long as the limits allow. Starts and evaluations are not in the hours.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first lines of a recipe."""

    hardware: str
    """In the format of `--gpus`, or `2 CPU cores and 24 GB`."""
    ran: date | None
    """None for a planned recipe."""
    place: str
    """Page and heading of its results, or empty for a planned recipe."""
    curve: bool
    """Whether there is a picture of them."""
    about: str
    first: str
    """The text behind `Change first:`."""


def head_of(path: Path) -> Head:
    """Return the head of a recipe. Raise `ValueError` if its badge or first change is missing."""
    lines = path.read_text(encoding="utf-8").splitlines()
    said = []
    for line in lines:
        if not line.startswith("# "):
            break
        said.append(line[2:])
    found = BADGE.fullmatch(said[0].removeprefix("badge: ")) if said else None
    text, _, first = " ".join(said[1:]).partition(" Change first: ")
    if found is None or not first:
        raise ValueError(
            f"{path}: its head needs `badge: ...` as the page's generator reads it, and `Change first: ...`"
        )
    ran = None if found["day"] is None else date.fromisoformat(found["day"])
    hardware, place = found["planned"] or found["ran"], found["place"] or ""
    return Head(
        hardware=hardware, ran=ran, place=place, curve=bool(place) and not found["bare"], about=text, first=first
    )


def models_in(folder: Path) -> Path:
    """Write the `config.json` of every public model, each under its name."""
    for name, (config, _) in PUBLIC.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def plan_of(path: Path, models: Path, hardware: str | None = None) -> Plan:
    """Return the plan of a recipe on this hardware, or on the hardware in its head."""
    hardware, assumed = hardware or head_of(path).hardware, Assumptions()
    cores = CORES.fullmatch(hardware)
    site = site_of(hardware, assumed) if cores is None else _cores(int(cores[1]), int(cores[2]))
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    overrides = [f"{key}={models / name}" for key, name in _names(given)]
    return Plan(*planned_config(path, overrides, site), site, assumed)


def _cores(cpus: int, gigabytes: int) -> Site:
    machine = Machine(gpus=0, gpu_gib=0.0, memory_gib=float(gigabytes), cpus=cpus)
    return Site(hardware=Hardware(machines=(machine,)), card=None, shm_bytes=None, named=True)


def _names(given: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of a recipe that name a model, with their values."""
    own = given.get("model", {}).get("path")
    named = [("model.path", own)] if own else []
    return named + [(f"{one}.teacher.path", given[one]["teacher"]["path"]) for one in TEACHERS if one in given]


def page(models: Path) -> str:
    """Return the page."""
    paths = [ROOT / name for name in RECIPES]
    heads = [head_of(path) for path in paths]
    plans = [plan_of(path, models) for path in paths]
    lines = [INTRODUCTION, "| recipe | badge | model | trained on | hardware |", "|---|---|---|---|---|"]
    lines += [_row(path, head) for path, head in zip(paths, heads, strict=True)]
    lines += ["", "The plan on that hardware:", ""]
    lines += ["| recipe | a rank's peak | an engine's process | main memory | a checkpoint | a step | all steps |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [_figures(path, plan) for path, plan in zip(paths, plans, strict=True)]
    for path, head, plan in zip(paths, heads, plans, strict=True):
        lines += ["", *_section(path, head, plan)]
    return "\n".join(lines) + "\n"


def _row(path: Path, head: Head) -> str:
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    model = given.get("model", {}).get("path") or "a fresh hybrid"
    return f"| [{path.stem}](#{path.stem}) | {_badge(head)} | {model} | {_data(given)} | {head.hardware} |"


def _badge(head: Head) -> str:
    if head.ran is None:
        return "planned"
    return f"**run** {head.ran}: [results]({_link(head)}){'' if head.curve else ', without a curve'}"


def _link(head: Head) -> str:
    return head.place.removeprefix("docs/")


def _data(given: dict[str, Any]) -> str:
    """Return the training data of the stages: supervised rows or environment tasks."""
    own = [given[name]["data"]["path"] for name in ("sft", "dpo") if "data" in given.get(name, {})]
    if own:
        return ", ".join(own)
    named = {name: env.get("data", {}).get("path", "made") for name, env in given["envs"].items()}
    return ", ".join(f"{name} ({source})" for name, source in named.items())


def _figures(path: Path, plan: Plan) -> str:
    rank, engine, time = plan.rank, plan.engine, plan.time
    cells = [
        "-" if rank is None else _of(rank.peak, plan.rank_free_memory),
        "-" if engine is None else _of(engine.peak, engine.allowed if plan.gpus else 0),
        _of(plan.host.peak, plan.host_free_memory),
        size(plan.model.checkpoint_bytes),
        "-" if time is None else f"{time.step_s:,.0f} s",
        "-" if time is None else f"{time.tokens / 1e6:,.0f} M tokens, {hours_text(time)}",
    ]
    return f"| {path.stem} | {' | '.join(cells)} |"


def _of(nbytes: float, room: float) -> str:
    return f"{size(int(nbytes))} of {size(int(room))}" if room else size(int(nbytes))


def _section(path: Path, head: Head, plan: Plan) -> list[str]:
    name = path.relative_to(ROOT)
    gpus = "" if CORES.fullmatch(head.hardware) else f" --gpus {head.hardware}"
    ran = (
        f"**Run** {head.ran} on {head.hardware} ([results]({_link(head)}){'' if head.curve else ', without a curve'})."
        if head.ran
        else f"Planned for {head.hardware}."
    )
    said = [f"## {path.stem}", "", *wrap(f"{ran} {head.about}", 128, break_long_words=False), "", "```"]
    said += [f"temper doctor --plan {name}{gpus}", f"temper run {name}  # needs {head.hardware}", "```", ""]
    if plan.time is not None:
        times = f"generating {plan.time.generate_s:,.0f} s, learning {plan.time.learn_s:,.0f} s"
        said.append(
            f"- a step: {times}, limited by {plan.time.limited_by}, {plan.time.sampled_per_s:,.0f} sampled tokens/s"
        )
    failing = [limit.what for limit in run_limits(plan) if not limit.holds]
    said += [f"- would be hit: {', '.join(failing)}"] if failing else []
    return [*said, f"- change first: {head.first}"]


def main() -> int:
    """Write the page."""
    with TemporaryDirectory() as folder:
        PAGE.write_text(page(models_in(Path(folder))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
