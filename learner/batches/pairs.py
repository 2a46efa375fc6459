"""Preference pairs as training batches. Both answers of a pair run in the same micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from temper.learner.batches.micro_batches import TrainBatch
from temper.learner.batches.packing import ON_CPU, PassCosts, cheapest_pair_plan, shared_length
from temper.learner.batches.samples import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The preferred and the rejected answer to one prompt, each with the prompt before it."""

    chosen: TrainingSample
    rejected: TrainingSample

    @property
    def is_usable(self) -> bool:
        """Whether both answers have a token with loss."""
        return bool(self.chosen.trained_tokens and self.rejected.trained_tokens)

    @property
    def shared_prompt(self) -> int:
        """Number of tokens that can run once for both answers. Both must have trained tokens."""
        answers = (self.chosen, self.rejected)
        return shared_length([answer.ids for answer in answers], [answer.first_trained for answer in answers])


def build_pair_batch(
    pairs: Sequence[Pair],
    *,
    ranks: int,
    micro_batch_tokens: int,
    pad_id: int,
    shared_prompts: bool = False,
    costs: PassCosts = ON_CPU,
) -> TrainBatch:
    """Build one step's batch of pairs. Its denominator is the number of pairs.

    In a micro-batch the rows of a pair are adjacent, the preferred answer first. Pairs of similar length run together, at
    most `micro_batch_tokens` tokens with padding. A longer pair runs alone. Pairs are spread evenly over the ranks. A rank
    with too few micro-batches gets pairs of weight 0. With `shared_prompts` a prompt runs once for both answers if that is
    cheaper. Pairs without a trained token in one answer are dropped. If no pair remains, ranks have no micro-batch.
    """
    used = [pair for pair in pairs if pair.is_usable]
    answers = [answer for pair in used for answer in (pair.chosen, pair.rejected)]
    prompts = [pair.shared_prompt if shared_prompts else 0 for pair in used]
    lengths = [len(answer.ids) for answer in answers]
    plan = cheapest_pair_plan(lengths, prompts, ranks=ranks, budget=micro_batch_tokens, costs=costs)
    return TrainBatch(plan=plan, rows=answers, denominator=float(len(used)), pad_id=pad_id, filler_rows=2)
