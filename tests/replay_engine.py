"""An engine that replays given completions, such as those that a run left in its trajectory files."""

import asyncio
import json
from pathlib import Path

import numpy as np

from envs.core.member import Holding
from rollout.engines.protocol import Completion, EngineStats, TurnRequest
from rollout.expert_choices import from_json
from rollout.trajectory import TOKEN_LIMITS, Stop, WeightVersion
from rollout.weights.manifest import WeightManifest

Recording = dict[tuple[int, ...], list[Completion]]
"""The completions of each prompt, in the order in which they are given."""


class ReplayEngine:
    """Gives each prompt its recorded completions in turn, over and over. Weights make no difference to it."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._given: dict[tuple[int, ...], int] = {}
        self._version = WeightVersion(step=0)

    async def generate(self, request: TurnRequest) -> Completion:
        """The next completion of this prompt, forced tokens included. `KeyError` for a prompt that was not recorded."""
        completions = self._recording[request.prompt_ids]
        number = self._given.get(request.prompt_ids, 0)
        self._given[request.prompt_ids] = number + 1
        return completions[number % len(completions)]

    async def load_weights(self, manifest: WeightManifest, offer: object, *, number: int) -> WeightVersion:
        """Take the version, nothing else."""
        self._version = manifest.weight_version
        return self._version

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Take the version, nothing else."""
        self._version = version
        return self._version

    def so_far(self, request: str) -> Completion | None:
        """Return nothing: a completion comes whole."""
        return None

    def take_stats(self) -> EngineStats:
        """Return nothing: no pass is made."""
        return EngineStats()

    async def take_turn(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Nothing to take: it has no device."""

    async def holding(self) -> Holding:
        """Hold nothing."""
        return Holding()

    async def answers(self) -> None:
        """Answer: there is no other process."""

    async def gets_on(self) -> None:
        """Answer: there is no other process."""

    async def died(self) -> None:
        """Wait: there is no process that dies."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to stop."""


def read_recording(path: Path) -> Recording:
    """The completions in a run's trajectory file, by the ids that the engine saw."""
    recording: Recording = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        trajectory = json.loads(line)
        seen: tuple[int, ...] = ()
        chosen = []
        for turn in trajectory["turns"]:
            seen = (*seen, *turn["context_ids"])
            if (own := from_json(turn.get("experts"))) is not None:
                chosen.append(own)
            completion = Completion(
                token_ids=tuple(turn["sampled_ids"]),
                logprobs_T=tuple(float("nan") if value is None else value for value in turn["logprobs"]),
                versions_T=tuple(turn["versions"]),
                forced_T=tuple(turn["forced"]),
                finished=Stop(trajectory["stop"]) not in TOKEN_LIMITS or turn is not trajectory["turns"][-1],
                experts=np.concatenate(chosen) if chosen else None,
            )
            recording.setdefault(seen, []).append(completion)
            seen = (*seen, *turn["sampled_ids"])
    return recording
