"""An engine that returns known turns token by token, and can stop inside one."""

import asyncio
from dataclasses import replace

from support.replay_engine import ReplayEngine

from temper.rollout.budget.rule import ThinkingLimit
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.token_arrays import tokens_of
from temper.rollout.trajectory import Trajectory

Said = dict[tuple[int, ...], Completion]
"""The whole turn after each prompt."""


def said_in(trajectory: Trajectory) -> Said:
    """The turns of an episode, by the engine's ids before each."""
    said: Said = {}
    seen: tuple[int, ...] = ()
    for turn in trajectory.turns:
        seen = (*seen, *tokens_of(turn.context_ids))
        said[seen] = Completion(
            token_ids=tokens_of(turn.sampled_ids),
            logprobs_T=tuple(turn.logprobs_T.tolist()),
            versions_T=tuple(turn.versions_T.tolist()),
            injected_T=tuple(turn.injected_T.tolist()),
            finished=True,
            experts=turn.experts,
        )
        seen = (*seen, *tokens_of(turn.sampled_ids))
    return said


class HeldEngine(ReplayEngine):
    """Returns a prompt's turn, or the rest of it. Call number `hold_at` stops after `tokens`.

    Its tokens have the version `version`. `held` is set when it stops.
    """

    def __init__(self, said: Said, *, version: int = 0, hold_at: int | None = None, tokens: int = 0) -> None:
        super().__init__({})
        self._said = said
        self._version_number = version
        self._hold_at = hold_at
        self._tokens = tokens
        self._running: dict[str, Completion] = {}
        self.held = asyncio.Event()
        self.asked: list[tuple[int, int, ThinkingLimit | None]] = []
        """Length of the prefix, seed and limit of each call."""
        self.most: list[int] = []

    async def generate(self, request: TurnRequest) -> Completion:
        prefix_ids = request.prefix_ids
        number = len(self.asked)
        self.asked.append((len(prefix_ids), request.seed, request.limit))
        self.most.append(request.max_tokens)
        whole = self._said[request.prompt_ids]
        assert whole.token_ids[: len(prefix_ids)] == prefix_ids
        rest = replace(
            whole,
            token_ids=whole.token_ids[len(prefix_ids) :],
            logprobs_T=whole.logprobs_T[len(prefix_ids) :],
            versions_T=(self._version_number,) * (len(whole.token_ids) - len(prefix_ids)),
            injected_T=whole.injected_T[len(prefix_ids) :],
        )
        if number == self._hold_at:
            assert request.name is not None
            self._running[request.name] = rest.first(self._tokens) if self._tokens < len(rest.token_ids) else rest
            self.held.set()
            await asyncio.Event().wait()
        return rest.first(request.max_tokens)

    def partial_completion(self, request: str) -> Completion | None:
        """The tokens of a stopped turn."""
        return self._running.get(request)
