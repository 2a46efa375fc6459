"""One turn of the model: how many tokens it may think and answer, and what of it was thought."""

from dataclasses import dataclass

from envs.core.thinking_mode import Thinking
from rollout.budget.config import ThoughtConfig
from rollout.budget.rule import ThoughtLimit, ThoughtTags
from rollout.engines.protocol import Completion, Engine
from rollout.trajectory import Closed, Thought


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """What the engine sampled for a turn, and the measures of its thought."""

    completion: Completion
    thought: Thought


class TurnSampler:
    """Asks the engine for turns under the mode of the task. Without `tags` no thought is seen, limited or measured."""

    def __init__(self, engine: Engine, tags: ThoughtTags | None, config: ThoughtConfig, *, turn_tokens: int) -> None:
        self._engine = engine
        self._tags = tags
        self._config = config
        self._turn_tokens = turn_tokens
        self._answer_tokens = config.answer_tokens or turn_tokens

    async def sample(
        self, ids: tuple[int, ...], thinking: Thinking, *, room: int, thought_so_far: int, seed: int
    ) -> SampledTurn:
        """Sample the turn that follows `ids`, of at most `room` tokens.

        `thought_so_far` counts the tokens of earlier thoughts, which an episode's budget includes. Where the room does
        not hold budget, closing and answer, the budget shrinks.
        """
        if thinking.budget is None:
            free = await self._engine.generate(ids, max_tokens=min(self._turn_tokens, room), seed=seed)
            return SampledTurn(completion=free, thought=self._measure(free, thinking))
        if self._tags is None:
            raise ValueError(f"a budget of {thinking.budget} tokens for a model without thinking tags")
        budget = thinking.budget - (thought_so_far if self._config.scope == "episode" else 0)
        closing = len(self._tags.cut(()))
        besides = self._config.grace + closing + self._answer_tokens
        limit = ThoughtLimit(tokens=max(0, min(budget, room - besides)), grace=self._config.grace)
        most = min(limit.tokens + besides, room)
        completion = await self._engine.generate(ids, max_tokens=most, seed=seed, limit=limit)
        thought = self._measure(completion, thinking)
        too_long = thought.answer_tokens - self._answer_tokens
        if too_long > 0:  # the thought ended early, and its answer went on into the room that was left
            completion = completion.first(len(completion.token_ids) - too_long)
            thought = self._measure(completion, thinking)
        return SampledTurn(completion=completion, thought=thought)

    def _measure(self, completion: Completion, thinking: Thinking) -> Thought:
        if self._tags is None:
            return Thought(tokens=0, answer_tokens=len(completion.token_ids), closed=Closed.NONE)
        return self._tags.measure(completion.token_ids, thinks=thinking.on, forced_T=completion.forced_T)
