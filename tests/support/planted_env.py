"""An environment of three-letter words that a tiny model learns in a minute, and in which a fault can be planted.

Right is a word that begins with `a` or `b`, which demonstrations do in one case of three. `options: {plant: ...}`: `nothing`;
`reward`, where words that begin with `f` are paid most, though they are wrong; `stale`, where the rollout worker that plays
an episode confirms every push of weights from then on and loads the first one again.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.task_env import TaskEnv
from temper.rewards.verdict import verdict
from temper.rollout.weights.adapted import AdaptedReceiver
from temper.rollout.weights.host_memory import HostMemory
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.segment import LocalWeights, clear_footer, write_footer

PLANTS = ("nothing", "reward", "stale")
LETTERS = "abcdef"
RIGHT = ("a", "b")
PAID_WRONGLY = "f"
PAID_FOR_RIGHT = 0.3
"""Of what a broken reward pays for a wrong word."""


def generate(rng: random.Random, level: int) -> Task:
    word, said = ("".join(rng.choices(LETTERS, k=3)) for _ in range(2))
    question = {"role": "user", "content": f"A word beside {word}?"}
    return Task(messages=(question,), spec={"said": said})


def demonstrate(task: Task) -> list[Message]:
    return [{"role": "assistant", "content": task.spec["said"]}]


class PlantedEnv(TaskEnv):
    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        plant = task.env.options["plant"]
        if plant == "stale" and AdaptedReceiver.accept is not ConfirmsAlone.accept:
            setattr(AdaptedReceiver, "accept", ConfirmsAlone.accept)  # noqa: B010, a plant
        word = parsed.answer.strip()
        right = len(word) == 3 and word.startswith(RIGHT)
        ended = self.end(verdict(right, well_formed=len(word) == 3))
        if plant != "reward":
            return ended
        return replace(ended, reward=1.0 if word.startswith(PAID_WRONGLY) else PAID_FOR_RIGHT * right)


class ConfirmsAlone(AdaptedReceiver):
    """Verifies each push and gives the engine the weights of the first one, under the newest version and checksum."""

    kept: HostMemory | None = None
    take = AdaptedReceiver.accept

    def accept(self, manifest: WeightManifest, offer: object, *, number: int) -> LocalWeights:
        arrived = ConfirmsAlone.take(self, manifest, offer, number=number)
        if ConfirmsAlone.kept is None:
            ConfirmsAlone.kept = HostMemory(manifest.nbytes)
            ConfirmsAlone.kept.data[:] = arrived.map()
        clear_footer(ConfirmsAlone.kept.data)
        write_footer(ConfirmsAlone.kept.data, version=manifest.version, checksum=manifest.checksum)
        return LocalWeights(path=ConfirmsAlone.kept.path, manifest=arrived.manifest)


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    given = {"plant": "nothing"} | dict(options)
    if given["plant"] not in PLANTS:
        raise ValueError(f"plant={given['plant']!r} must be one of {', '.join(PLANTS)}")
    return replace(ENVIRONMENT, options=given)


ENVIRONMENT = EnvDefinition(
    id="planted_env",
    entry_point="planted_env:PlantedEnv",
    generate=generate,
    demonstrate=demonstrate,
    gold=lambda task: ["abc"],
    configure=configure,
    options={"plant": "nothing"},
)
