"""Which sequences run together: micro-batches within a token budget, prompts that run once, and the split over ranks.

A plan has a list of packs for each rank; a pack is a list of pieces, and becomes one micro-batch. A sequence is named by
its place in the list of all sequences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from learner.batches.shared_prefixes import Family

PASS_TOKENS = 96
"""What a pass through the model costs beside its tokens, in tokens: operations take time however small they are. Measured
by `orchestrator/bench/learner.py`'s shapes on a CPU core with 0.7 M parameters: 90, and 180 more for shared prompts."""
MARGIN = 0.9
"""A plan with shared prompts is taken where it costs less than this times the plan without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Sequences whose first `prompt` tokens run once; `length` is the longest rest. Without a prompt: one sequence."""

    rows: tuple[int, ...]
    prompt: int
    length: int


Pack = list[Piece]
Plan = list[list[Pack]]


def pack_tokens(pack: Pack) -> int:
    """Tokens that a pack's passes process, padding included: each prompt once, and the rest of each sequence."""
    rows = sum(len(piece.rows) for piece in pack)
    return len(pack) * max(piece.prompt for piece in pack) + rows * max(piece.length for piece in pack)


def pack_cost(pack: Pack) -> int:
    """What a pack costs in tokens: those that it processes, and a pass; with prompts one more, and as much for the cache."""
    return pack_tokens(pack) + PASS_TOKENS * (3 if pack[0].prompt else 1)


def plan_cost(plan: Plan) -> int:
    """The cost of the rank that has most to do."""
    return max(sum(pack_cost(pack) for pack in packs) for packs in plan)


def cheapest_plan(lengths: Sequence[int], families: Sequence[Family], *, ranks: int, budget: int) -> Plan:
    """The plan that costs least, of one without shared prompts and several with; `budget` is in tokens of a pack."""
    best = plain_plan(lengths, ranks=ranks, budget=budget)
    if not families:
        return best
    lowest = MARGIN * plan_cost(best)
    largest = max(len(family.rows) for family in families)
    sizes = [largest] if ranks == 1 else [-(-largest // 2**halvings) for halvings in range(largest.bit_length())]
    for most_rows in sizes:
        for piece_cost in (0, 2 * PASS_TOKENS):
            pieces = _pieces(lengths, families, budget=budget, most_rows=most_rows, piece_cost=piece_cost)
            if len(pieces) < ranks:
                continue
            plan = _spread(pieces, ranks=ranks, budget=budget)
            if plan_cost(plan) < lowest:
                best, lowest = plan, plan_cost(plan)
    return best


def cheapest_pair_plan(lengths: Sequence[int], prompts: Sequence[int], *, ranks: int, budget: int) -> Plan:
    """The cheaper plan of two for pairs of sequences, 0 and 1, 2 and 3 and so on, which always run in one pack.

    `prompts` says for each pair how many tokens could run once for both; 0 for none.
    """
    longest = [max(pair) for pair in zip(lengths[0::2], lengths[1::2], strict=True)]
    in_full = [Piece(rows=(2 * n, 2 * n + 1), prompt=0, length=length) for n, length in enumerate(longest)]
    best = dealt(in_full, ranks=ranks, budget=budget)
    shared = [replace(p, prompt=shared, length=p.length - shared) for p, shared in zip(in_full, prompts, strict=True)]
    plan = _spread(shared, ranks=ranks, budget=budget)
    return plan if plan_cost(plan) < MARGIN * plan_cost(best) else best


def plain_plan(lengths: Sequence[int], *, ranks: int, budget: int) -> Plan:
    """Each sequence in full."""
    pieces = [Piece(rows=(row,), prompt=0, length=length) for row, length in enumerate(lengths)]
    return dealt(pieces, ranks=ranks, budget=budget)


def dealt(pieces: Iterable[Piece], *, ranks: int, budget: int) -> Plan:
    """Pieces without prompts, like lengths together, dealt to and fro so that the ranks get nearly the same lengths."""
    longest_first = sorted(pieces, key=lambda piece: -piece.length)
    shares: list[list[Piece]] = [[] for _ in range(ranks)]
    for start in range(0, len(longest_first), ranks):
        order = range(ranks) if (start // ranks) % 2 == 0 else range(ranks - 1, -1, -1)
        for rank, piece in zip(order, longest_first[start : start + ranks]):  # noqa: B905 - the last row may be shorter
            shares[rank].append(piece)
    return [_filled(share, budget=budget) for share in shares]


def _pieces(
    lengths: Sequence[int], families: Sequence[Family], *, budget: int, most_rows: int, piece_cost: int
) -> list[Piece]:
    """All sequences as pieces: families cut where that saves tokens, everything else by itself."""
    pieces: list[Piece] = []
    shared: set[int] = set()
    for family in families:
        rows = sorted(family.rows, key=lambda row: -lengths[row])
        rests = [lengths[row] - family.prompt for row in rows]
        cuts = _cuts(rests, prompt=family.prompt, budget=budget, most_rows=most_rows, piece_cost=piece_cost)
        for start, stop in cuts:
            if stop - start > 1:
                pieces.append(Piece(rows=tuple(rows[start:stop]), prompt=family.prompt, length=rests[start]))
                shared.update(rows[start:stop])
    alone = [Piece(rows=(row,), prompt=0, length=length) for row, length in enumerate(lengths) if row not in shared]
    return pieces + alone


def _cuts(rests: Sequence[int], *, prompt: int, budget: int, most_rows: int, piece_cost: int) -> list[tuple[int, int]]:
    """Where to cut a family, longest rest first, so that its pieces process the fewest tokens (dynamic programming).

    More pieces run the prompt more often, fewer pad more. A piece of one sequence is that sequence in full.
    """
    costs, starts = [0], [0]
    for stop in range(1, len(rests) + 1):
        options = []
        for start in range(max(0, stop - most_rows), stop):
            tokens = prompt + (stop - start) * rests[start]
            if tokens <= budget or stop - start == 1:
                options.append((costs[start] + tokens + piece_cost, start))
        cost, start = min(options)
        costs.append(cost)
        starts.append(start)
    cuts, stop = [], len(rests)
    while stop:
        cuts.append((starts[stop], stop))
        stop = starts[stop]
    return cuts[::-1]


def _spread(pieces: Sequence[Piece], *, ranks: int, budget: int) -> Plan:
    """At least one piece for each rank, with and without prompts."""
    return [_packed(share, budget=budget) for share in _balanced(pieces, ranks=ranks)]


def _balanced(pieces: Sequence[Piece], *, ranks: int) -> list[list[Piece]]:
    """Pieces for each rank: the largest first, each to the rank that has least (Graham, 1969)."""
    shares: list[list[Piece]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for piece in sorted(pieces, key=lambda piece: -pack_tokens([piece])):
        rank = loads.index(min(loads))
        shares[rank].append(piece)
        loads[rank] += pack_tokens([piece])
    return shares


def _packed(pieces: Sequence[Piece], *, budget: int) -> list[Pack]:
    """Packs of one rank: those with prompts first, then those without."""
    order = sorted(pieces, key=lambda piece: (-piece.length, -piece.prompt))
    return [
        *_filled([piece for piece in order if piece.prompt], budget=budget),
        *_filled([piece for piece in order if not piece.prompt], budget=budget),
    ]


def _filled(pieces: Iterable[Piece], *, budget: int) -> list[Pack]:
    """Runs of pieces (given longest first) within the budget; prompts together only if that is cheaper than apart."""
    packs: list[Pack] = []
    for piece in pieces:
        if packs:
            longer = [*packs[-1], piece]
            cheaper = not piece.prompt or pack_cost(longer) <= pack_cost(packs[-1]) + pack_cost([piece])
            if cheaper and pack_tokens(longer) <= budget:
                packs[-1] = longer
                continue
        packs.append([piece])
    return packs
