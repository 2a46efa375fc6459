"""Speed and quality against lag: `python -m bench.lag runs/demo-1 runs/demo-2 runs/demo-3 --lags 0,1,2,4`.

The runs have finished the stages `sft` and `rl`, one run of each seed. Forks of them train by `rl` from the same checkpoint
with the other lags. Other settings are equal, but a lag above 1 needs a trust region. Finished forks are not repeated. The
table has means over the runs. It follows Marin's protocol: speed, quality and lost tokens of the same runs
(github.com/marin-community/marin/issues/8955).
"""

import argparse
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from bench.forks import fork_run
from support.event_rows import read_event_log

from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.evaluation.record import RunRecord, read_run
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.folder import RunDir

WINDOW = 5
"""Steps of the running mean of rewards."""
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""Quantiles of Student's distribution for intervals of 95 % by the number of seeds."""
TRUST_REGION = ("rl.loss.token_range=[0.5,5]",)
"""Runs with a lag above 1 need one: tokens with a ratio outside of it are not trained."""
HEAD = "| lag | seconds of rl | seconds to reward {goal} | final accuracy, 95 % | share of tokens dropped, by reason |"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagMeasures:
    """The measures of one run. `to_goal` is None if it did not reach the reward. `dropped` are shares of sampled tokens."""

    seconds: float
    to_goal: float | None
    accuracy: float
    dropped: dict[str, float]


def measure(folder: Path, goal: float) -> LagMeasures:
    """Return the measures of a finished run. Rewards and accuracies are means over the environments."""
    record = read_run(folder)
    (after,) = [one for one in record.evaluations if one.label == "rl"]
    return LagMeasures(
        seconds=record.stage_seconds["rl"],
        to_goal=seconds_to(record, goal),
        accuracy=fmean(result.avg_at_k for result in after.envs.values()),
        dropped=dropped(folder),
    )


def seconds_to(record: RunRecord, goal: float) -> float | None:
    """Return the seconds of steps until the running mean of rewards reaches a goal."""
    names = [f"env/{env}/reward" for env in record.envs_of("rl")]
    recent, passed = deque[float](maxlen=WINDOW), 0.0
    for row in record.rows:
        if row.stage == "rl" and "time/step_s" in row.values:
            passed += row.values["time/step_s"]
            recent.append(fmean(row.values[name] for name in names if name in row.values))
            if len(recent) == WINDOW and fmean(recent) >= goal:
                return passed
    return None


def dropped(folder: Path) -> dict[str, float]:
    """Return the shares of sampled tokens in dropped groups, by the reason."""
    rows = read_event_log(RunDir(folder).event_log)
    tokens = {row.ticket: row.tokens or 0 for row in rows if row.event == "finished"}
    lost = Counter[str]()
    for row in rows:
        if row.event == "dropped":
            lost[row.why or "unknown"] += tokens.get(row.ticket, 0)
    return {why: count / sum(tokens.values()) for why, count in lost.items()}


def train(base: Path, lag: int) -> Path:
    """Return the base run if it has this lag, else its finished fork."""
    if load_config(base / "config.yaml", []).section(RlConfig).max_lag == lag:
        return base
    trust = TRUST_REGION if lag > 1 else ()
    return fork_run(base, f"{base.name}-lag-{lag}", [f"rl.max_lag={lag}", *trust])


def interval(values: Sequence[float]) -> str:
    half = STUDENT[len(values)] * stdev(values) / sqrt(len(values)) if len(values) in STUDENT else float("nan")
    return f"{fmean(values):.3f} +- {half:.3f}"


def table_row(lag: int, runs: Sequence[LagMeasures]) -> str:
    reached = [run.to_goal for run in runs if run.to_goal is not None]
    to_goal = f"{fmean(reached):.0f} ({len(reached)} of {len(runs)} runs)" if reached else "-"
    reasons = sorted({why for run in runs for why in run.dropped})
    lost = ", ".join(f"{why} {fmean(run.dropped.get(why, 0.0) for run in runs):.1%}" for why in reasons) or "none"
    cells = [lag, f"{fmean(run.seconds for run in runs):.0f}", to_goal, interval([run.accuracy for run in runs]), lost]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--lags", default="0,1,2,4", help="comma-separated (default: %(default)s)")
    parser.add_argument("--goal", type=float, default=0.8, help="mean reward to reach (default: %(default)s)")
    given = parser.parse_args()
    print(HEAD.format(goal=given.goal), "|---|---|---|---|---|", sep="\n")
    for lag in map(int, given.lags.split(",")):
        folders = [train(base, lag) for base in given.runs]
        print(table_row(lag, [measure(folder, given.goal) for folder in folders]), flush=True)


if __name__ == "__main__":
    main()
