"""Pairs of answers of which one is preferred, as training batches: the two always run in the same micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from temper.learner.batches.micro_batches import TrainBatch, build_planned_batch
from temper.learner.batches.packing import cheapest_pair_plan
from temper.learner.batches.samples import TrainingSample
from temper.learner.batches.shared_prefixes import shared_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two answers to one prompt, each with the prompt before it: the one that should become likelier, and the other."""

    chosen: TrainingSample
    rejected: TrainingSample

    @property
    def usable(self) -> bool:
        """Whether both answers have a token that carries loss."""
        return bool(self.chosen.trained_tokens and self.rejected.trained_tokens)

    @property
    def shared_prompt(self) -> int:
        """How many tokens can run once for both answers, which must have trained ones."""
        answers = (self.chosen, self.rejected)
        return shared_length([answer.ids for answer in answers], [answer.first_trained for answer in answers])


def build_pair_batch(
    pairs: Sequence[Pair], *, ranks: int, micro_batch_tokens: int, pad_id: int, shared_prompts: bool = False
) -> TrainBatch:
    """Make one step's batch of pairs; its denominator is the number of pairs.

    In a micro-batch a pair's rows follow each other, the preferred answer first. Pairs of like length run together, at
    most `micro_batch_tokens` with padding at once; a pair over that runs alone. They are dealt evenly over the ranks, and
    a rank with fewer micro-batches than another gets pairs of weight 0. With `shared_prompts` a prompt runs once for both
    answers where that is cheaper. A pair of which an answer has no trained token is left out; where no pair is left,
    ranks have no micro-batch at all.
    """
    used = [pair for pair in pairs if pair.usable]
    answers = [answer for pair in used for answer in (pair.chosen, pair.rejected)]
    prompts = [pair.shared_prompt if shared_prompts else 0 for pair in used]
    plan = cheapest_pair_plan([len(answer.ids) for answer in answers], prompts, ranks=ranks, budget=micro_batch_tokens)
    return build_planned_batch(plan, answers, denominator=len(used), pad_id=pad_id, dummy_rows=2)
