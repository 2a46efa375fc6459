"""Client of the simulator process (`simulator_child`): the results of calls, and the state that they leave.

The process keeps no state. Every request makes new simulators and executes all calls of the dialogue so far. It may be
killed at any time, and one process serves all episodes of a worker.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from temper.envs.core.clock import stop_clock
from temper.envs.core.errors import EnvironmentFault
from temper.envs.multi_turn_calls.simulator_names import ERROR, REMEDY
from temper.envs.sandbox.line_process import LineProcess, NotStarted
from temper.envs.sandbox.per_process import PerProcess

CHILD = Path(__file__).with_name("simulator_child.py")
CPU_S, WALL_S = 2.0, 60.0
Calls = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The simulators of a dialogue and their initial states."""

    classes: tuple[str, ...]
    config: Mapping[str, Any]
    long_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback:
    """The results of the model's and the reference calls, and the attributes (`Class.name`) that differ after them.

    `spans` has the start of each of the model's calls on the monotonic clock and its duration, in seconds.
    """

    model: tuple[str, ...]
    reference: tuple[str, ...]
    differing: tuple[str, ...]
    spans: tuple[tuple[float, float], ...]


class Simulators:
    """One child process. Requests run one at a time, from any thread, with their own deadlines."""

    def __init__(self, package: Path, *, wall_s: float = WALL_S) -> None:
        """`package` is the folder of `bfcl_eval`. A request may take `CPU_S` of processor time and `wall_s` in all."""
        self.package = package
        self.wall_s = wall_s
        self.process = LineProcess(CHILD, "the simulators", (str(package.parent), str(CPU_S)))

    def play(self, scene: Scene, *, model: Calls, reference: Calls) -> Playback | None:
        """Execute the model's and the reference calls, each on fresh simulators.

        Return None if the model's calls took too long or ended the process twice, but the reference calls alone did not.
        Raise `EnvironmentFault` if a simulator can't be loaded, fails, or does not finish the reference calls.
        """
        with stop_clock(), self.process.lock:
            reply = self._ask(scene, model, reference)
            if reply is None:
                if self._ask(scene, (), reference) is None:
                    raise EnvironmentFault(
                        f"the simulators {', '.join(scene.classes)} of {self.package} time out or die on the reference calls"
                    )
                reply = self._ask(scene, model, reference)
        if reply is None:
            return None
        for call, text in zip(reference, reply["reference"], strict=True):
            if text.startswith(ERROR):
                raise EnvironmentFault(f"the reference call {call} failed in the simulators of {self.package}: {text}")
        return Playback(
            model=tuple(reply["model"]),
            reference=tuple(reply["reference"]),
            differing=tuple(reply["differing"]),
            spans=tuple((reply["asked"] + began, seconds) for began, seconds in reply["spans"]),
        )

    def _ask(self, scene: Scene, model: Calls, reference: Calls) -> dict[str, Any] | None:
        try:
            self.process.start()
        except NotStarted as error:
            raise EnvironmentFault(f"the simulators of {self.package} can't be loaded: {error}; {REMEDY}") from error
        for name in scene.classes:
            if name in self.process.ready["unusable"]:
                raise EnvironmentFault(
                    f"{name} of {self.package} can't be loaded ({self.process.ready['unusable'][name]}); {REMEDY}"
                )
        started = time.monotonic()
        reply = self.process.ask(asdict(scene) | {"model": model, "reference": reference}, seconds=self.wall_s)
        if reply is not None and "fault" in reply:
            raise EnvironmentFault(f"a simulator of {', '.join(scene.classes)} failed: {reply['fault']}")
        return None if reply is None else reply | {"asked": started}


SHARED = PerProcess[dict[str, Simulators]](dict)


def shared_simulators(package: str) -> Simulators:
    return SHARED.get().setdefault(package, Simulators(Path(package)))
