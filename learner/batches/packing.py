"""Packing: micro-batches within a token budget, prompts that run once, and the split over ranks.

A batch's plan has a list of micro-batches for each rank. A micro-batch is a list of items. A sample is named by its index in
the list of all samples. Suffix: `_G` sample of a group.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np

from temper.rollout.token_arrays import Ids

MOST_ROWS = 16
"""Maximum number of ungrouped samples that share a prefix. Attention copies the prefix's keys and values for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Samples, by index, that begin with the same `prompt` tokens. None of these tokens is trained."""

    rows: tuple[int, ...]
    prompt: int


def shared_length(ids_G: Sequence[Ids], first_trained_G: Sequence[int]) -> int:
    """Return the number of tokens that all samples share and that can run once. The last one before a trained token does
    not."""
    common = min(first_trained_G) - 1
    for ids_T in ids_G[1:]:
        others = np.flatnonzero(ids_T[:common] != ids_G[0][:common])
        common = int(others[0]) if len(others) else common
    return common


def find_prefixes(groups: Sequence[int | None], ids: Sequence[Ids], first_trained: Sequence[int]) -> list[SharedPrefix]:
    """Return the prefixes that can run once, of whole groups and of samples without a group that begin alike.

    Each argument has one entry per sample.
    """
    rows_of: dict[int | None, list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(group, []).append(row)
    ungrouped = rows_of.pop(None, [])
    found = [
        SharedPrefix(
            rows=tuple(rows), prompt=shared_length([ids[row] for row in rows], [first_trained[row] for row in rows])
        )
        for rows in (*rows_of.values(), *_rows_that_begin_alike(ungrouped, ids, first_trained))
        if len(rows) > 1
    ]
    return [prefix for prefix in found if prefix.prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Neighbours in sorted order, from `start` to before `stop`, that share `prompt` tokens."""

    start: int
    stop: int
    prompt: int

    @property
    def saved(self) -> int:
        """Tokens saved if at most `MOST_ROWS` samples share a prefix."""
        rows = self.stop - self.start
        return (rows - math.ceil(rows / MOST_ROWS)) * self.prompt


def _rows_that_begin_alike(
    rows: Sequence[int], ids: Sequence[Ids], first_trained: Sequence[int]
) -> list[tuple[int, ...]]:
    """Split samples into sets of at most `MOST_ROWS` that share many tokens before the first trained one.

    Neighbours in sorted order share the most. Adjacent blocks join, longest common prefix first, if
    that saves more tokens.
    """
    order = sorted(rows, key=lambda row: ids[row][: first_trained[row]].astype(">i4").tobytes())
    common = [shared_length([ids[a], ids[b]], [first_trained[a], first_trained[b]]) for a, b in pairwise(order)]
    # Of a block, only the entries at both ends are kept up to date.
    blocks = [_Block(start=place, stop=place + 1, prompt=0) for place in range(len(order))]
    for place in sorted(range(len(common)), key=lambda place: -common[place]):
        left, right = blocks[place], blocks[place + 1]
        joined = _Block(start=left.start, stop=right.stop, prompt=common[place])
        if joined.saved > left.saved + right.saved:
            blocks[joined.start] = blocks[joined.stop - 1] = joined
    found, start = list[tuple[int, ...]](), 0
    while start < len(order):
        stop = blocks[start].stop
        longest_first = sorted(order[start:stop], key=lambda row: -len(ids[row]))
        found += [tuple(longest_first[at : at + MOST_ROWS]) for at in range(0, stop - start, MOST_ROWS)]
        start = stop
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """The costs by which a plan is chosen. The defaults hold for a CPU core and 0.7 M parameters, and a GPU measures others
    (`learner/models/pass_costs.py`).
    """

    pass_tokens: int = 96
    """Fixed cost of a forward pass, in tokens. Measured with the shapes of `tests/bench/learner.py`: 90, plus 180 for shared
    prompts."""
    margin: float = 0.9
    """A plan with shared prompts is used if it costs less than this factor times the plan without."""


ON_CPU = PassCosts()
ROW_TOKENS = 8
"""Fixed cost of a row in a pass without padding, in tokens. Measured like `pass_tokens` on a CPU: 5 to 9."""


def packed_cost(*, tokens: int, rows: int) -> int:
    """Return the cost, in tokens, of rows laid end to end. The scorer does so if padding costs more."""
    return tokens + ROW_TOKENS * rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PackItem:
    """Samples whose first `prompt` tokens run once. `length` is the longest rest, `rests` their sum."""

    rows: tuple[int, ...]
    prompt: int
    length: int
    rests: int

    @property
    def tokens(self) -> int:
        """Tokens that a pass of this item alone processes, padding included."""
        return self.prompt + len(self.rows) * self.length


MicroBatchPlan = list[PackItem]
BatchPlan = list[list[MicroBatchPlan]]
"""The micro-batches of each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSize:
    """The size of a micro-batch: items, samples, longest prompt, longest rest and the sum of the rests."""

    items: int
    rows: int
    prompt: int
    length: int
    rests: int

    @property
    def tokens(self) -> int:
        """Processed tokens, padding included: each prompt once, and the rest of each sample."""
        return self.items * self.prompt + self.rows * self.length

    def cost(self, costs: PassCosts) -> int:
        """Cost in tokens: the processed tokens and one pass. Prompts add one pass, and the same again for the cache.

        Without prompts the rows run end to end if that is cheaper.
        """
        if self.prompt:
            return self.tokens + costs.pass_tokens * 3
        return min(self.tokens, packed_cost(tokens=self.rests, rows=self.rows)) + costs.pass_tokens

    def with_item(self, item: PackItem) -> "PackSize":
        return PackSize(
            items=self.items + 1,
            rows=self.rows + len(item.rows),
            prompt=max(self.prompt, item.prompt),
            length=max(self.length, item.length),
            rests=self.rests + item.rests,
        )


NOTHING = PackSize(items=0, rows=0, prompt=0, length=0, rests=0)


def micro_batch_size(plan: MicroBatchPlan) -> PackSize:
    """Return the size of a micro-batch. Either all its items have prompts or none has."""
    return reduce(PackSize.with_item, plan, NOTHING)


def batch_cost(plan: BatchPlan, costs: PassCosts) -> int:
    """Return the cost of the busiest rank."""
    return max(sum(micro_batch_size(micro_batch).cost(costs) for micro_batch in share) for share in plan)


def cheapest_plan(
    lengths: Sequence[int], prefixes: Sequence[SharedPrefix], *, ranks: int, budget: int, costs: PassCosts = ON_CPU
) -> BatchPlan:
    """Return the cheapest of one plan without shared prompts and several with them.

    `budget` is the maximum number of tokens in a micro-batch.
    """
    best = plain_plan(lengths, ranks=ranks, budget=budget)
    if not prefixes:
        return best
    lowest = costs.margin * batch_cost(best, costs)
    largest = max(len(prefix.rows) for prefix in prefixes)
    sizes = [largest] if ranks == 1 else [-(-largest // 2**halvings) for halvings in range(largest.bit_length())]
    for most_rows in sizes:
        for item_cost in (0, 2 * costs.pass_tokens):
            items = _build_items(lengths, prefixes, budget=budget, most_rows=most_rows, item_cost=item_cost)
            if len(items) < ranks:
                continue
            plan = balanced_plan(items, ranks=ranks, budget=budget, costs=costs)
            if batch_cost(plan, costs) < lowest:
                best, lowest = plan, batch_cost(plan, costs)
    return best


def cheapest_pair_plan(
    lengths: Sequence[int], prompts: Sequence[int], *, ranks: int, budget: int, costs: PassCosts = ON_CPU
) -> BatchPlan:
    """Return the cheaper of two plans for pairs of samples (0, 1), (2, 3) and so on. A pair runs together.

    `prompts` has the number of tokens that each pair can share, 0 for none.
    """
    in_full, shared = (
        [_item((2 * n, 2 * n + 1), lengths, prompt=prompt) for n, prompt in enumerate(own)]
        for own in ([0] * len(prompts), prompts)
    )
    best = round_robin_plan(in_full, ranks=ranks, budget=budget)
    plan = balanced_plan(shared, ranks=ranks, budget=budget, costs=costs)
    return plan if batch_cost(plan, costs) < costs.margin * batch_cost(best, costs) else best


def plain_plan(lengths: Sequence[int], *, ranks: int, budget: int) -> BatchPlan:
    return round_robin_plan([_item((row,), lengths) for row in range(len(lengths))], ranks=ranks, budget=budget)


def _item(rows: tuple[int, ...], lengths: Sequence[int], *, prompt: int = 0) -> PackItem:
    rests = [lengths[row] - prompt for row in rows]
    return PackItem(rows=rows, prompt=prompt, length=max(rests), rests=sum(rests))


def balanced_plan(items: Iterable[PackItem], *, ranks: int, budget: int, costs: PassCosts = ON_CPU) -> BatchPlan:
    """Plan items with and without prompts, at least one per rank. Within a rank items with prompts run first."""
    plan = []
    for share in balance(items, ranks=ranks):
        order = sorted(share, key=lambda item: (-item.length, -item.prompt))
        with_prompt, without = [i for i in order if i.prompt], [i for i in order if not i.prompt]
        plan.append([*pack(with_prompt, budget=budget, costs=costs), *pack(without, budget=budget)])
    return plan


def round_robin_plan(items: Iterable[PackItem], *, ranks: int, budget: int) -> BatchPlan:
    """Plan items without prompts, similar lengths together: longest first, dealt to the ranks in alternating direction."""
    longest_first = sorted(items, key=lambda item: -item.length)
    shares: list[list[PackItem]] = [[] for _ in range(ranks)]
    for start in range(0, len(longest_first), ranks):
        order = range(ranks) if (start // ranks) % 2 == 0 else range(ranks - 1, -1, -1)
        for rank, item in zip(order, longest_first[start : start + ranks]):  # noqa: B905 - the last row may be shorter
            shares[rank].append(item)
    return [pack(share, budget=budget) for share in shares]


def balance(items: Iterable[PackItem], *, ranks: int) -> list[list[PackItem]]:
    """Assign each item, largest first, to the least loaded rank (Graham, 1969)."""
    shares: list[list[PackItem]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for item in sorted(items, key=lambda item: -item.tokens):
        rank = loads.index(min(loads))
        shares[rank].append(item)
        loads[rank] += item.tokens
    return shares


def pack(items: Iterable[PackItem], *, budget: int, costs: PassCosts = ON_CPU) -> list[MicroBatchPlan]:
    """Join items, longest first, within the budget. Items with prompts join only if that is cheaper."""
    plans: list[MicroBatchPlan] = []
    size = NOTHING
    for item in items:
        alone = NOTHING.with_item(item)
        longer = size.with_item(item)
        cheaper = not item.prompt or longer.cost(costs) <= size.cost(costs) + alone.cost(costs)
        if plans and cheaper and longer.tokens <= budget:
            plans[-1].append(item)
            size = longer
        else:
            plans.append([item])
            size = alone
    return plans


def _build_items(
    lengths: Sequence[int], prefixes: Sequence[SharedPrefix], *, budget: int, most_rows: int, item_cost: int
) -> list[PackItem]:
    """Build items of all samples. Samples with a shared prefix are cut if that saves tokens, others run alone."""
    items: list[PackItem] = []
    shared: set[int] = set()
    for prefix in prefixes:
        rows = sorted(prefix.rows, key=lambda row: -lengths[row])
        rests = [lengths[row] - prefix.prompt for row in rows]
        cuts = _find_cuts(rests, prompt=prefix.prompt, budget=budget, most_rows=most_rows, item_cost=item_cost)
        for start, stop in cuts:
            if stop - start > 1:
                items.append(_item(tuple(rows[start:stop]), lengths, prompt=prefix.prompt))
                shared.update(rows[start:stop])
    return items + [_item((row,), lengths) for row in range(len(lengths)) if row not in shared]


def _find_cuts(
    rests: Sequence[int], *, prompt: int, budget: int, most_rows: int, item_cost: int
) -> list[tuple[int, int]]:
    """Find the cuts of samples with one prompt, longest rest first, that minimise the processed tokens.

    By dynamic programming. More items repeat the prompt more often, fewer items pad more. A single sample runs in full.
    """
    costs, starts = [0], [0]
    for stop in range(1, len(rests) + 1):
        options = []
        for start in range(max(0, stop - most_rows), stop):
            tokens = prompt + (stop - start) * rests[start]
            if tokens <= budget or stop - start == 1:
                options.append((costs[start] + tokens + item_cost, start))
        cost, start = min(options)
        costs.append(cost)
        starts.append(start)
    cuts, stop = [], len(rests)
    while stop:
        cuts.append((starts[stop], stop))
        stop = starts[stop]
    return cuts[::-1]
