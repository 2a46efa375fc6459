"""What is simulated."""

from dataclasses import dataclass

from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.supervision import SupervisionConfig
from temper.orchestrator.tools.preflight.simulation.lengths import Lengths
from temper.orchestrator.tools.preflight.simulation.speeds import Speeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run to be simulated: `loop` are the settings of its stage, of which `engines` and the lag may be others than planned.

    Engines die `deaths` times an hour each, in the mean. Of the groups the share `kept` teaches something. `steps` are counted
    after `filling` ones at the start.
    """

    loop: LoopConfig
    engines: int
    speeds: Speeds
    lengths: Lengths
    supervision: SupervisionConfig
    deaths: float = 0.0
    kept: float = 1.0
    retries: int = 1
    steps: int = 8
    seed: int = 0

    @property
    def filling(self) -> int:
        """Steps at the start that are not counted: nothing is in flight before them."""
        return self.loop.max_lag + 2
