"""An engine that replays given completions, such as a run's trajectory files, at a given speed."""

import asyncio
import json
import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from time import monotonic

import numpy as np

from temper.envs.core.process import MemoryUsage
from temper.rollout.codec import from_data
from temper.rollout.engines.protocol import Completion, EngineStats, TurnRequest
from temper.rollout.expert_choices import Choices
from temper.rollout.trajectory import TOKEN_LIMITS, Stop, WeightVersion
from temper.rollout.weights.manifest import WeightManifest

Recording = dict[tuple[int, ...], list[Completion]]
"""The completions of each prompt, in order."""


class ReplayEngine:
    """Gives each prompt its recorded completions in turn, repeatedly. Weights do not affect it."""

    def __init__(self, recording: Recording, *, others: Sequence[Completion] = (), token_s: float = 0.0) -> None:
        """Prompts without a recording receive `others` in turn. Each token of a request takes `token_s` seconds."""
        self._prompts = {prompt: cycle(completions) for prompt, completions in recording.items()}
        self._others: Iterator[Completion] = cycle(others)
        self._token_s = token_s
        self._playing: dict[str, tuple[float, Completion]] = {}
        self._stats = EngineStats()
        self._version = WeightVersion(step=0)

    async def generate(self, request: TurnRequest) -> Completion:
        """Return the next completion for this prompt, injected tokens included.

        Raises `KeyError` for a prompt without a recording, if there are no others.
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

    def partial_completion(self, request: str) -> Completion | None:
        """Return the replayed part of a completion. None without a speed."""
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

    async def version(self) -> WeightVersion:
        """Return the version that it took last."""
        return self._version

    def take_stats(self) -> EngineStats:
        """Return the tokens read and returned since the last call. It makes no passes."""
        stats, self._stats = self._stats, EngineStats()
        return stats

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Do nothing: it has no device."""

    async def memory_usage(self) -> MemoryUsage:
        """Return no use."""
        return MemoryUsage()

    async def wait_for_answer(self) -> None:
        """Return: there is no other process."""

    async def wait_for_progress(self) -> None:
        """Return: there is no other process."""

    async def wait_until_dead(self) -> None:
        """Wait: no process can die."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Do nothing."""


def read_recording(path: Path) -> Recording:
    """Return the completions in a run's trajectory file, by the engine's ids."""
    recording: Recording = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        trajectory = json.loads(line)
        turns = trajectory["turns"]
        cut = Stop(trajectory["stop"]) in TOKEN_LIMITS
        seen: tuple[int, ...] = ()
        chosen: list[Choices] = []
        for turn in turns:
            seen = (*seen, *turn["context_ids"])
            if turn["experts"] is not None:
                chosen.append(from_data(np.ndarray, turn["experts"]))
            completion = Completion(
                token_ids=tuple(turn["sampled_ids"]),
                logprobs_T=tuple(math.nan if value is None else value for value in turn["logprobs"]),
                versions_T=tuple(turn["versions"]),
                injected_T=tuple(turn["injected"]),
                finished=not cut or turn is not turns[-1],
                experts=np.concatenate(chosen) if chosen else None,
            )
            recording.setdefault(seen, []).append(completion)
            seen = (*seen, *completion.token_ids)
    return recording
