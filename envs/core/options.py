"""The options of a family of environments: plain data from a YAML file, checked by name."""

import difflib
from collections.abc import Iterable, Sequence


def only_known(given: Iterable[str], known: Sequence[str], what: str) -> None:
    """ValueError for the first name that is not known, with the nearest that is."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"{what}: unknown {name!r}; {hint}")
