"""Training under budgets: arms that differ in `rl` alone, from the same SFT checkpoint per seed (docs/budget_study.md).

`python -m bench.budget_study configs/budget_study.yaml --arms free,random,nested --seeds 1,2` trains the missing arms,
then prints the tables and the tests of each environment. You can stop it at any time. The same command continues.
Results are files in `--results` with the accuracy of each task. An arm that has one is not trained again.
"""

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from bench.forks import base_run, fork_run
from numpy.typing import NDArray

from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import Mode
from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.evaluation.evaluator import heldout_tasks
from temper.orchestrator.evaluation.record import read_evaluation, read_run
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.report.figures import Dot, Panel, caption_panels
from temper.rollout.tokenizer import load_tokenizer

NESTED = "rl.thinking.nested_budgets=[8,16,32,48]"
ARMS: dict[str, list[str]] = {
    "free": [],
    "fixed": ["rl.thinking={budget: 1.0, budgets: [32]}", "rl.loss.advantage=reinforce_pp_baseline"],
    "solve_rate": ["rl.shaping.solve_rate_penalty=0.2"],
    "random": ["rl.thinking={budget: 0.8, budget_range: [4, 64]}"],
    "nested": [NESTED],
    "adaptive": [NESTED, "rl.shaping.accuracy_margin=0.02"],
}
"""Settings of the arms. `sft` is the model before `rl`."""
SFT, BASE = "sft", "budget-sft"
BASES = ("free", "fixed", "random")
"""Arms that the others are compared with."""
TESTED = (8, 48)
"""Lowest and highest budget of the test at every budget."""
RESAMPLES = 2000

RESULTS = Path("runs/budget_study")
FREE = "free"
"""The unlimited budget in a file of results."""

Scores = dict[int | None, dict[str, float]]
"""The accuracy of each task by its key, for each budget. Budget None is unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvMeasures:
    """One environment in one run: accuracies of tasks and mean tokens, by budget."""

    scores: Scores
    tokens: dict[int | None, float]
    reference: dict[int, float] | None = None
    """The accuracies of the reference on the same tasks, by budget, if the environment has one."""

    @property
    def budgets(self) -> list[int]:
        return sorted(budget for budget in self.scores if budget is not None)

    def accuracy(self, budget: int | None) -> float:
        return fmean(self.scores[budget].values())

    def area(self) -> float:
        """Return the mean accuracy over log2 of the budget, from the lowest budget above 0 to the highest."""
        return area({budget: self.accuracy(budget) for budget in self.budgets if budget})


def to_data(measures: EnvMeasures) -> dict[str, Any]:
    """Return the plain data of measures: for each budget a row of accuracies, in the order of `keys`."""
    named = {FREE if budget is None else str(budget): budget for budget in measures.scores}
    keys = sorted(set[str]().union(*measures.scores.values()))
    scores = {name: [measures.scores[budget].get(key) for key in keys] for name, budget in named.items()}
    tokens = {name: round(measures.tokens[budget], 2) for name, budget in named.items()}
    return {"keys": keys, "scores": scores, "tokens": tokens, "reference": measures.reference}


def from_data(given: dict[str, Any]) -> EnvMeasures:
    """Return the measures of `to_data`."""

    def by_budget(found: dict[str, Any]) -> dict[int | None, Any]:
        return {None if name == FREE else int(name): value for name, value in found.items()}

    scores = {
        budget: {key: value for key, value in zip(given["keys"], row, strict=True) if value is not None}
        for budget, row in by_budget(given["scores"]).items()
    }
    best = given["reference"]
    return EnvMeasures(
        scores=scores,
        tokens=by_budget(given["tokens"]),
        reference=None if best is None else {int(name): value for name, value in best.items()},
    )


def area(accuracies: dict[int, float]) -> float:
    places = [log2(budget) for budget in accuracies]
    return float(np.trapezoid(list(accuracies.values()), places) / (places[-1] - places[0]))


def measure(file: Path) -> dict[str, EnvMeasures]:
    """Return the measures of an evaluation in the folder of its run, by environment."""
    found, run = {}, RunDir(file.parents[1])
    config = load_config(run.root / "config.yaml", [])
    heldout = heldout_tasks(config, config.section(EvalConfig).tasks)
    for env, points in read_evaluation(file).curve.items():
        limited = [point for point in points if point.mode in (Mode.BUDGET, Mode.UNLIMITED)]
        found[env] = EnvMeasures(
            scores={
                point.budget: {score.key: float(score.accuracy) for score in point.scores if score.scored}
                for point in limited
            },
            tokens={point.budget: point.tokens for point in limited},
        )
        tasks = [task for task in heldout if task.env.name == env]
        if "best_lines" in tasks[0].spec:
            best = reference(tasks, found[env].budgets, run.newest_model())
            found[env] = replace(found[env], reference=best)
    return found


def reference(tasks: Sequence[Task], budgets: Sequence[int], model: Path) -> dict[int, float]:
    """Return the reference of `anytime` tasks: it writes the best lines, and answers from those whose tokens fit a budget."""
    tokenizer, values = load_tokenizer(model), dict[int, list[float]]()
    for task in tasks:
        ends = [
            len(tokenizer("\n".join(task.spec["best_lines"][:count]), add_special_tokens=False)["input_ids"])
            for count in range(len(task.spec["best_lines"]) + 1)
        ]
        for budget in budgets:
            whole = max(count for count, end in enumerate(ends) if end <= budget)
            values.setdefault(budget, []).append(task.spec["chances"][whole])
    return {budget: fmean(found) for budget, found in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Mean differences of accuracy by budget with a simultaneous 95 % band: `difference` +- `half`."""

    difference: NDArray[np.float64]
    half: NDArray[np.float64]

    @property
    def low(self) -> NDArray[np.float64]:
        return self.difference - self.half

    @property
    def high(self) -> NDArray[np.float64]:
        return self.difference + self.half


def simultaneous_band(pairs: Sequence[NDArray[np.float64]], *, rng: np.random.Generator) -> Band:
    """Return the band of differences. `pairs` has for each seed the differences, of shape (budgets, tasks).

    Tasks are resampled within each seed, so the band is about the models of these seeds. Three seeds are too few to resample.
    The half-width is the 95 % quantile of the largest studentised deviation, times the standard error at each budget: max-t
    (Westfall and Young, Resampling-Based Multiple Testing, 1993).
    """
    mean = np.mean([pair.mean(axis=1) for pair in pairs], axis=0)
    means = np.stack([_resample_mean(pairs, rng) for _ in range(RESAMPLES)])
    error = np.maximum(means.std(axis=0), 1e-9)
    largest = (np.abs(means - mean) / error).max(axis=1)
    return Band(difference=mean, half=float(np.quantile(largest, 0.95)) * error)


def _resample_mean(pairs: Sequence[NDArray[np.float64]], rng: np.random.Generator) -> NDArray[np.float64]:
    means = [pair[:, rng.integers(pair.shape[1], size=pair.shape[1])].mean(axis=1) for pair in pairs]
    return np.asarray(np.mean(means, axis=0))


def differences(one: EnvMeasures, other: EnvMeasures, budgets: Sequence[int | None]) -> NDArray[np.float64]:
    """Return the accuracies in `one` minus those in `other` of the tasks that both have, of shape (budgets, tasks)."""
    tables = [run.scores[budget] for run in (one, other) for budget in budgets]
    keys = sorted(set.intersection(*map(set, tables)))
    return np.array([[one.scores[budget][key] - other.scores[budget][key] for key in keys] for budget in budgets])


def train(config: str, arm: str, seed: int) -> Path:
    """Return the evaluation of an arm, after training it if it is missing."""
    base = base_run(config, f"{BASE}-{seed}", ["init", "sft", "eval"], [f"seed={seed}"])
    if arm == SFT:
        return base / "eval" / "sft.json"
    return fork_run(base, f"budget-{arm}-{seed}", ARMS[arm]) / "eval" / "rl.json"


def arms_table(env: str, found: dict[str, list[EnvMeasures]]) -> str:
    """Return the table of an environment: means over the seeds."""
    budgets = next(iter(found.values()))[0].budgets
    head = ["arm", "free accuracy", "free tokens", "area", *(f"at {budget}" for budget in budgets)]
    rows = []
    for arm, runs in found.items():
        free = [fmean(run.accuracy(None) for run in runs), fmean(run.tokens[None] for run in runs)]
        at = [f"{fmean(run.accuracy(budget) for run in runs):.2f}" for budget in budgets]
        rows.append([arm, f"{free[0]:.3f}", f"{free[1]:.0f}", f"{fmean(run.area() for run in runs):.3f}", *at])
    references = [run.reference for run in next(iter(found.values())) if run.reference]
    if references:
        best = {budget: fmean(one[budget] for one in references) for budget in budgets}
        whole = area({budget: best[budget] for budget in budgets if budget})
        rows.append(["reference", "", "", f"{whole:.3f}", *(f"{best[budget]:.2f}" for budget in budgets)])
    lines = [f"### {env}", "", *("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)), ""]
    return "\n".join(lines)


def tests_table(env: str, found: dict[str, list[EnvMeasures]], *, base: str) -> str:
    """Return the differences of each other arm to `base`: free accuracy, all budgets, and the area on each seed."""
    rng, lines = np.random.default_rng(0), [f"{env}, against `{base}`:", ""]
    budgets = found[base][0].budgets
    tested = [place for place, budget in enumerate(budgets) if TESTED[0] <= budget <= TESTED[1]]
    low, high = TESTED
    lines += [
        f"| arm | free accuracy | lowest bound, {low} to {high} | bounds at all budgets | area by seed | free tokens |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for arm, runs in found.items():
        if arm == base:
            continue
        pairs = list(zip(runs, found[base], strict=True))
        free = simultaneous_band([differences(one, other, [None]) for one, other in pairs], rng=rng)
        each = simultaneous_band([differences(one, other, budgets) for one, other in pairs], rng=rng)
        within = simultaneous_band([differences(one, other, budgets)[tested] for one, other in pairs], rng=rng)
        gains = ", ".join(f"{one.area() - other.area():+.3f}" for one, other in pairs)
        saved = fmean(one.tokens[None] / other.tokens[None] - 1 for one, other in pairs)
        lines.append(
            f"| {arm} | {free.difference[0]:+.3f} +- {free.half[0]:.3f} | {within.low.min():+.3f} | "
            f"{each.low.min():+.3f} to {each.high.max():+.3f} | {gains} | {saved:+.0%} |"
        )
    return "\n".join([*lines, ""])


def frontier_panel(env: str, found: dict[str, list[EnvMeasures]]) -> Panel:
    """Return each arm's accuracy against tokens spent: means and ranges over the seeds."""

    def dot(runs: list[EnvMeasures], budget: int | None) -> Dot:
        mode = Mode.UNLIMITED if budget is None else Mode.BUDGET
        tokens, accuracies = fmean(run.tokens[budget] for run in runs), [run.accuracy(budget) for run in runs]
        return Dot(mode=mode, x=tokens, value=fmean(accuracies), low=min(accuracies), high=max(accuracies))

    lines = {arm: [dot(runs, budget) for budget in (*runs[0].budgets, None)] for arm, runs in found.items()}
    return Panel(title=env, measure="accuracy", lines=lines)


def write_csv(file: Path, found: Mapping[tuple[str, int], "ArmResult"]) -> None:
    """Write a row for each arm, seed, environment and budget: accuracy, mean tokens and the number of tasks."""
    with file.open("w", newline="") as opened:
        out = csv.writer(opened, lineterminator="\n")
        out.writerow(["arm", "seed", "environment", "budget", "accuracy", "tokens", "n"])
        for (arm, seed), result in found.items():
            for env, measures in result.envs.items():
                for budget, scores in measures.scores.items():
                    numbers = [f"{measures.accuracy(budget):.4f}", measures.tokens[budget], len(scores)]
                    out.writerow([arm, seed, env, FREE if budget is None else budget, *numbers])


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm of a seed. `sampled_tokens` counts the tokens that the engines sampled in `rl`."""

    envs: dict[str, EnvMeasures]
    sampled_tokens: int
    commits: list[str]

    def write(self, file: Path) -> None:
        envs = {env: to_data(found) for env, found in self.envs.items()}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"commits": self.commits, "sampled_tokens": self.sampled_tokens, "envs": envs}))

    @classmethod
    def read(cls, file: Path) -> "ArmResult":
        given = json.loads(file.read_text())
        envs = {env: from_data(found) for env, found in given["envs"].items()}
        return cls(envs=envs, sampled_tokens=given["sampled_tokens"], commits=given["commits"])


def _result(config: str, folder: Path, arm: str, seed: int) -> ArmResult:
    """Return an arm's result: from its file, or else from its run, which is trained if it is missing."""
    file = folder / f"{arm}-{seed}.json"
    if not file.exists():
        evaluation = train(config, arm, seed)
        run = read_run(evaluation.parents[1])
        tokens = 0 if arm == SFT else round(sum(run.series("rl", "engine/sampled_tokens")[1]))
        ArmResult(envs=measure(evaluation), sampled_tokens=tokens, commits=run.commits).write(file)
    return ArmResult.read(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--arms", default=",".join((SFT, *ARMS)), help="comma-separated (default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="CSV file for the accuracies")
    parser.add_argument("--picture", type=Path, help="SVG file for accuracy against tokens spent")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results (default: %(default)s)")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated (default: %(default)s)")
    given = parser.parse_args()
    seeds, arms = [int(seed) for seed in given.seeds.split(",")], given.arms.split(",")
    order = [(arm, seed) for seed in seeds for arm in arms]
    found = {pair: _result(given.config, given.results, *pair) for pair in order}
    if given.csv is not None:
        write_csv(given.csv, found)
    for arm in [arm for arm in arms if arm != SFT]:
        tokens = [f"{found[arm, seed].sampled_tokens / 1e6:.2f} M" for seed in seeds]
        print(f"{arm}: tokens sampled in training by seed: {', '.join(tokens)}")
    by_env = {
        env: {arm: [found[arm, seed].envs[env] for seed in seeds] for arm in arms}
        for env in sorted(found[order[0]].envs)
    }
    if given.picture is not None:
        panels = [frontier_panel(env, by_arm) for env, by_arm in by_env.items()]
        given.picture.write_text(caption_panels("", "", panels).document)
    for env, by_arm in by_env.items():
        print(f"\n{arms_table(env, by_arm)}")
        for base in [base for base in BASES if base in arms]:
            print(tests_table(env, by_arm, base=base))


if __name__ == "__main__":
    main()
