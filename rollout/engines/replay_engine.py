"""An engine that replays given completions, such as those that a run left in its trajectory files, at a given speed."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from time import monotonic

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

    def __init__(self, recording: Recording, *, others: Sequence[Completion] = (), token_s: float = 0.0) -> None:
        """`others` go, in turn, to prompts that were not recorded. Each token of a request takes `token_s` seconds."""
        self._prompts = {prompt: cycle(completions) for prompt, completions in recording.items()}
        self._others: Iterator[Completion] = cycle(others)
        self._token_s = token_s
        self._playing: dict[str, tuple[float, Completion]] = {}
        self._stats = EngineStats()
        self._version = WeightVersion(step=0)

    async def generate(self, request: TurnRequest) -> Completion:
        """Return the next completion for this prompt, forced tokens included.

        Raises `KeyError` for a prompt that was not recorded, where there is nothing for others.
        """
        completion = next(self._prompts.get(request.prompt_ids, self._others), None)
        if completion is None:
            raise KeyError(request.prompt_ids)
        completion = completion.first(request.max_tokens)
        if self._token_s:
            await self._played(completion, request.name or "")
        self._stats = EngineStats(
            prompt_tokens=self._stats.prompt_tokens + len(request.prompt_ids),
            sampled_tokens=self._stats.sampled_tokens + len(completion.token_ids),
        )
        return completion

    async def _played(self, completion: Completion, name: str) -> None:
        self._playing[name] = (monotonic(), completion)
        try:
            await asyncio.sleep(len(completion.token_ids) * self._token_s)
        finally:
            self._playing.pop(name, None)

    def so_far(self, request: str) -> Completion | None:
        """Return what was played of a completion; None where each comes whole."""
        if request not in self._playing:
            return None
        began, completion = self._playing[request]
        return completion.first(int((monotonic() - began) / self._token_s))

    async def load_weights(self, manifest: WeightManifest, offer: object, *, number: int) -> WeightVersion:
        """Take the version, nothing else."""
        self._version = manifest.weight_version
        return self._version

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Take the version, nothing else."""
        self._version = version
        return self._version

    def take_stats(self) -> EngineStats:
        """Return the tokens that were read and given since the last call: no pass is made."""
        stats, self._stats = self._stats, EngineStats()
        return stats

    async def occupy(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Take nothing: it has no device."""

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
        """End with nothing to stop."""


def read_recording(path: Path) -> Recording:
    """Return the completions in a run's trajectory file, by the ids that the engine saw."""
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
