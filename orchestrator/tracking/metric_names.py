"""Under which names MLflow shows the metrics of a run, so that its charts stand in groups, the results first.

MLflow makes a group of what stands before the last `/` of a name, and sorts the groups by their letters. `metrics.jsonl` has
no numbers in its keys: there `train/loss` of the stage `rl` is what is `4_train/rl/loss` here.
"""

import math
import re

from temper.orchestrator.run.folder import evaluations_of
from temper.orchestrator.run.metrics_log import MetricsRow

ACCURACY = "1_accuracy"
"""The group of each environment's accuracy over the evaluations of a run, one after the other."""
BETWEEN = "2_eval"
"""The group of the evaluations between the steps of a stage."""
REWARD = "2_reward"
"""The group of each environment's mean reward."""
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
"""The first word of a key of `metrics.jsonl`, and the group in which MLflow shows it; any other word stays as it is."""
WHOLE = "9_evaluation"
"""The group of all that an evaluation measured."""
SYSTEM = "system"
"""The stage whose rows are about the machine; MLflow shows this group on a page of its own."""
EVALUATIONS = "eval-"
"""What the names of the rows of whole evaluations begin with."""


REFUSED = re.compile(r"[^\w./: -]")
"""Characters that MLflow takes in no name."""


def display_name(stage: str, key: str, *, of: str | None = None) -> str:
    """Return the name of a key of a stage's rows, in the run or, with `of`, in the nested run of this stage alone."""
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
    """Return a row's values that are numbers, under the names that are shown."""
    return {display_name(row.stage, name, of=of): value for name, value in row.values.items() if math.isfinite(value)}
