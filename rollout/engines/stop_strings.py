"""Where a turn ends at a text that the engine which goes on with it has only the end of."""

from collections.abc import Callable, Sequence

from rollout.engines.protocol import Completion


def ended_at_stop(
    rest: Completion, begun: Sequence[int], stop: Sequence[str], text: Callable[[Sequence[int]], str]
) -> Completion:
    """Return the rest of a turn, up to the token that completes a stop string which the tokens before it had `begun`.

    An engine that goes on with a turn sees only what it samples itself.
    """
    if not begun or not stop:
        return rest
    near = [*begun[-2 * max(map(len, stop)) :]]
    for count in range(1, len(rest.token_ids) + 1):
        said = text([*near, *rest.token_ids[:count]])
        if any(one in said for one in stop):
            return rest.ended(count)
    return rest
