"""Samples one turn of the model, within its limits on thinking and answer."""

import hashlib
from dataclasses import dataclass, replace

from temper.envs.core.clock import Clock
from temper.envs.core.thinking_mode import Thinking, up_to
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.engines.protocol import Completion, Engine, TurnRequest
from temper.rollout.episodes.resume import PartialTurn
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.trajectory import Closed, ThinkingStats


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """The engine's tokens for a turn, and the measures of its thinking."""

    completion: Completion
    thinking: ThinkingStats


class TurnSampler:
    """Samples turns under the task's thinking mode. Without `tags` thinking is neither limited nor measured."""

    def __init__(self, engine: Engine, tags: ThinkingTags | None, config: ThinkingConfig, *, turn_tokens: int) -> None:
        self._engine = engine
        self._tags = tags
        self._config = config
        self._turn_tokens = turn_tokens

    async def sample(
        self,
        ids: tuple[int, ...],
        thinking: Thinking,
        *,
        room: int,
        thinking_so_far: int,
        seed: int,
        sampling: Sampling = PLAIN,
        partial: Completion | None = None,
        request: str | None = None,
        clock: Clock | None = None,
    ) -> SampledTurn:
        """Sample the turn that follows `ids`, of at most `room` tokens, `partial` included.

        `thinking_so_far` counts the thinking tokens of earlier turns, for budgets of an episode. The budget shrinks if
        opening, thinking, closing and answer exceed `room` or `sampling.max_tokens`. `request` names the turn for
        `partial_completion`. `clock` is the episode's.
        """
        turn_tokens = sampling.max_tokens or self._turn_tokens
        room = min(room, sampling.max_tokens or room)
        free = TurnRequest(
            prompt_ids=ids, max_tokens=min(turn_tokens, room), seed=seed, sampling=sampling, name=request, clock=clock
        )
        if thinking.budget is None:
            return self.measure_turn(await self._generate(free, partial), thinking, ids)
        if self._tags is None:
            raise ValueError(f"a budget of {thinking.budget} tokens for a model without thinking tags")
        budget = thinking.budget - (thinking_so_far if self._config.scope == "episode" else 0)
        limit, most = self._limit(budget, ids, room=room, sampling=sampling)
        completion = await self._generate(replace(free, max_tokens=most, limit=limit), partial)
        return self._cut_answer(completion, thinking, ids, sampling=sampling)

    def _limit(self, budget: int, ids: tuple[int, ...], *, room: int, sampling: Sampling) -> tuple[ThinkingLimit, int]:
        """Return the limit that leaves room for the answer, and the most tokens of the turn."""
        assert self._tags is not None
        answer_tokens = self._answer_tokens(sampling)
        besides = self._config.grace + len(self._tags.complete_closing(()))
        besides += 0 if self._tags.is_opened_by(ids) else self._tags.opening_tokens
        kept = answer_tokens if self._config.answer_tokens or sampling.max_tokens is None else 1
        limit = ThinkingLimit(tokens=max(0, min(budget, room - besides - kept)), grace=self._config.grace)
        return limit, min(limit.tokens + besides + answer_tokens, room)

    def _answer_tokens(self, sampling: Sampling) -> int:
        """Return the most tokens of an answer after limited thinking."""
        return self._config.answer_tokens or sampling.max_tokens or self._turn_tokens

    def _cut_answer(
        self, completion: Completion, thinking: Thinking, ids: tuple[int, ...], *, sampling: Sampling
    ) -> SampledTurn:
        """Return a turn with limited thinking, its answer cut to its limit. Thinking may have left it more tokens."""
        sampled = self.measure_turn(completion, thinking, ids)
        too_long = sampled.thinking.answer_tokens - self._answer_tokens(sampling)
        if too_long <= 0:
            return sampled
        return self.measure_turn(completion.first(len(completion.token_ids) - too_long), thinking, ids)

    def turn_at_budget(
        self, turn: Completion, budget: int, context: tuple[int, ...], *, room: int, sampling: Sampling
    ) -> PartialTurn | None:
        """Return the beginning that an unlimited turn after `context` shares with one under a budget. None if they are equal.

        It ends where the budget ends the reasoning. If the reasoning is shorter, it ends at the limit of the answer, or it is
        the whole turn if the budget leaves more tokens. `room` and `sampling` are as in `sample`.
        """
        if self._tags is None:
            return None
        room = min(room, sampling.max_tokens or room)
        limit, most = self._limit(budget, context, room=room, sampling=sampling)
        end = self._tags.forced_end(turn.token_ids, limit, opened=self._tags.is_opened_by(context))
        if end is not None and end.start < len(turn.token_ids):
            return PartialTurn(context_ids=context, completion=turn.first(end.start), is_finished=False)
        cut = self._cut_answer(turn, up_to(budget), context, sampling=sampling).completion
        if len(cut.token_ids) < len(turn.token_ids):
            return PartialTurn(context_ids=context, completion=cut, is_finished=True)
        if turn.finished or len(turn.token_ids) >= most:
            return None
        return PartialTurn(context_ids=context, completion=turn, is_finished=False)

    def partial_completion(self, request: str) -> Completion | None:
        """Return the tokens of a running turn. None if it does not run or the engine can't report it."""
        return self._engine.partial_completion(request)

    def measure_turn(self, completion: Completion, thinking: Thinking, ids: tuple[int, ...]) -> SampledTurn:
        """Return a whole turn after `ids`, with the measures of its thinking."""
        if self._tags is None:
            stats = ThinkingStats(tokens=0, answer_tokens=len(completion.token_ids), closed=Closed.NONE)
        else:
            stats = self._tags.measure(
                completion.token_ids,
                thinks=thinking.on,
                injected_T=completion.injected_T,
                opened=thinking.on and self._tags.is_opened_by(ids),
            )
        return SampledTurn(completion=completion, thinking=stats)

    async def _generate(self, request: TurnRequest, partial: Completion | None) -> Completion:
        """Return the whole turn. The rest of a partial turn has a different seed."""
        if partial is None or not partial.token_ids:
            return await self._engine.generate(request)
        left = request.max_tokens - len(partial.token_ids)
        if left <= 0:  # an earlier process had higher limits
            return partial.first(request.max_tokens)
        seed = _rest_seed(request.seed, len(partial.token_ids))
        rest = replace(request, max_tokens=left, seed=seed, prefix_ids=partial.token_ids)
        return partial.join(await self._engine.generate(rest))


def _rest_seed(seed: int, tokens: int) -> int:
    """Return the seed of the rest of a turn. With the turn's own seed the rest would repeat the draws of its beginning."""
    digest = hashlib.sha256(f"{seed}/{tokens}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
