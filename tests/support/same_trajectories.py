"""`python -m support.same_trajectories RUN RUN`: whether two runs sampled and scored the same, for changes of no behaviour.

Compares the files in both folders' `trajectories/`, answer by answer, and the losses of their steps. Tokens, texts and
rewards must be equal. Log-probabilities and losses may differ in the last digits, as sums of floats do, and the largest
difference is shown. The exit status is 1 if anything else differs or if nothing can be compared.

Two runs are comparable with the same configuration and seed, one rollout worker and `rl.max_lag=0`.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.orchestrator.run.metrics_log import read_metrics

SAME_OF_A_TURN = ("context_ids", "sampled_ids", "injected", "text")
SAME_OF_AN_ANSWER = ("reward", "parts", "outcome", "stop", "failure")
Answer = dict[str, Any]
"""A line of `trajectories/`, as `rollout/trajectory_json.py` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileComparison:
    """Matches and differences of two trajectory files."""

    name: str
    both: int
    """Answers that both files have."""
    only_one: int
    """Answers to groups in only one file. The order of groups may vary if a step discards many."""
    other_tokens: int
    other_rewards: int
    largest_gap: float
    """The largest log-probability difference over equal tokens."""

    @property
    def same(self) -> bool:
        return self.both > 0 and not (self.other_tokens or self.other_rewards)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.both} answers in both, {self.only_one} in one alone; other tokens {self.other_tokens}, "
            f"other rewards {self.other_rewards}; largest difference of a log-probability {self.largest_gap:.2g}"
        )


def compare_files(one: Path, other: Path) -> FileComparison:
    """Compare two files of trajectories."""
    first, second = _answers(one), _answers(other)
    pairs = [(first[key], second[key]) for key in first if key in second]
    equal = [(a, b) for a, b in pairs if _turns(a) == _turns(b)]
    gaps = (abs(p - q) for a, b in equal for p, q in zip(_logprobs(a), _logprobs(b), strict=True))
    return FileComparison(
        name=one.stem,
        both=len(pairs),
        only_one=len(first) + len(second) - 2 * len(pairs),
        other_tokens=len(pairs) - len(equal),
        other_rewards=sum(any(a[name] != b[name] for name in SAME_OF_AN_ANSWER) for a, b in pairs),
        largest_gap=max(gaps, default=0.0),
    )


def largest_loss_gap(one: Path, other: Path) -> tuple[int, float]:
    """Return the number of steps with a loss in both runs, and the largest difference of these losses."""
    first, second = _losses(one), _losses(other)
    shared = first.keys() & second.keys()
    return len(shared), max((abs(first[key] - second[key]) for key in shared), default=0.0)


def _answers(path: Path) -> dict[tuple[int, str, str, int], Answer]:
    """Read the answers of a file by group, task and place among the answers of their group."""
    seen: Counter[tuple[int, str, str]] = Counter()
    found: dict[tuple[int, str, str, int], Answer] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        group = (answer["ticket"], answer["env"], answer["key"])
        found[(*group, seen[group])] = answer
        seen[group] += 1
    return found


def _turns(answer: Answer) -> list[list[Any]]:
    return [[turn[name] for name in SAME_OF_A_TURN] for turn in answer["turns"]]


def _logprobs(answer: Answer) -> Iterator[float]:
    return (value for turn in answer["turns"] for value in turn["logprobs"] if value is not None)


def _losses(run: Path) -> dict[tuple[str, int], float]:
    rows = ((row.key, row.values.get("train/loss", math.nan)) for row in read_metrics(run / "metrics.jsonl"))
    return {key: loss for key, loss in rows if math.isfinite(loss)}


def compare_runs(one: Path, other: Path) -> Iterable[FileComparison]:
    """Compare the trajectory files that two runs share. Raise `ValueError` if they share none."""
    files = sorted((one / "trajectories").glob("*.jsonl"))
    shared = [path for path in files if (other / "trajectories" / path.name).exists()]
    if not shared:
        raise ValueError(f"{one} and {other} have no file of trajectories in common")
    return (compare_files(path, other / "trajectories" / path.name) for path in shared)


def main(arguments: list[str]) -> int:
    """Print a line for each file and one for the losses. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m support.same_trajectories", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs=2, metavar="RUN", help="the folder of a run")
    one, other = parser.parse_args(arguments).runs
    found = list(compare_runs(one, other))
    print(*found, sep="\n")
    steps, gap = largest_loss_gap(one, other)
    print(f"losses of {steps} steps: largest difference {gap:.2g}")
    return 0 if all(comparison.same for comparison in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
