"""Where a turn ends at a text that the engine which goes on with it has only the end of."""

from collections.abc import Callable, Sequence

from temper.rollout.engines.protocol import Completion

TOKENS_PER_CHARACTER = 4
"""Most tokens of one character: one for each of its bytes."""


def ended_at_stop(
    rest: Completion, begun: Sequence[int], stop: Sequence[str], text: Callable[[Sequence[int]], str]
) -> Completion:
    """Return the rest of a turn, up to the token that completes a stop string which the tokens before it had `begun`.

    An engine that continues a turn sees only the tokens that it samples itself. A string that had begun is complete within its
    length, or never.
    """
    if not begun or not stop:
        return rest
    near = TOKENS_PER_CHARACTER * max(map(len, stop))
    for count in range(1, min(near, len(rest.token_ids)) + 1):
        said = text([*begun[-near:], *rest.token_ids[:count]])
        if any(one in said for one in stop):
            return rest.ended(count)
    return rest
