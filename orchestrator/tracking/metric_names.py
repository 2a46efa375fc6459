"""Names of a run's metrics in MLflow, grouped for its charts, results first.

MLflow groups metrics by the part before the last `/` of a name, and sorts groups alphabetically. Keys of `metrics.jsonl`
have no numbers: `train/loss` of the stage `rl` becomes `4_train/rl/loss`.
"""

import math
import re

from temper.orchestrator.run.folder import evaluations_of
from temper.orchestrator.run.metrics_log import MetricsRow

ACCURACY = "1_accuracy"
"""Group of each environment's accuracy over the evaluations of a run."""
BETWEEN = "2_eval"
"""Group of the evaluations between the steps of a stage."""
REWARD = "2_reward"
"""Group of each environment's mean reward."""
GROUPS = {
    "env": "3_env",
    "train": "4_train",
    "data": "4_train",
    "rollout": "5_rollout",
    "episode": "6_episode",
    "engine": "7_engine",
    "buffer": "8_buffer",
    "push": "8_push",
    "time": "8_time",
}
"""MLflow group by the first word of a key. Other words stay unchanged."""
WHOLE = "9_evaluation"
"""Group of all metrics of a separate evaluation."""
SYSTEM = "system"
"""Stage of machine metrics. MLflow shows this group on a separate page."""
EVALUATIONS = "eval-"
"""Prefix of the rows of separate evaluations."""


REFUSED = re.compile(r"[^\w./: -]")
"""Characters that MLflow rejects in names."""


def display_name(stage: str, key: str, *, of: str | None = None) -> str:
    """Return the display name of a key, in the run or, with `of`, in the nested run of this stage."""
    key = REFUSED.sub("_", key)
    if stage == SYSTEM:
        return f"{SYSTEM}/{key}"
    if stage.startswith(EVALUATIONS):
        return f"{WHOLE}/{key}" if of else f"{WHOLE}/{stage.removeprefix(EVALUATIONS)}/{key}"
    if stage.endswith(evaluations_of("")):
        return f"{BETWEEN}/{key}" if of else f"{BETWEEN}/{stage.removesuffix(evaluations_of(''))}/{key}"
    word, _, rest = key.partition("/")
    if word == "env" and rest.count("/") == 1 and rest.endswith("/reward"):
        env = rest.removesuffix("/reward")
        return f"{REWARD}/{env}" if of else f"{REWARD}/{stage}/{env}"
    if rest and word in GROUPS:
        return f"{GROUPS[word]}/{rest}" if of else f"{GROUPS[word]}/{stage}/{rest}"
    return key if of else f"{stage}/{key}"


def display_values(row: MetricsRow, *, of: str | None = None) -> dict[str, float]:
    """Return a row's finite values under their display names."""
    return {display_name(row.stage, name, of=of): value for name, value in row.values.items() if math.isfinite(value)}
