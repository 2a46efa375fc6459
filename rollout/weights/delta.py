"""The changes between two versions of the same entries: which of them differ, and what they are now.

The entries are cut into blocks of 65,536. The changes are an array of bytes: how many entries changed in each block
(uint32), then where in their block (uint16 each; a bit for every entry of the block where that is shorter), then their
new values. Two ways to say where, by density: Chambi et al., "Better bitmap performance with Roaring bitmaps", 2016.
"""

import numpy as np

BLOCK = 2**16
FEW = BLOCK // 16
"""Up to so many changes in a block their places are shorter than a bit for every entry."""
UNSIGNED = {2: np.uint16, 4: np.uint32}


def changes(old: np.ndarray, new: np.ndarray, *, itemsize: int) -> np.ndarray:
    """Return what turns `old` into `new`: two arrays of as many bytes, whose entries have `itemsize` bytes."""
    was, now = old.view(UNSIGNED[itemsize]), new.view(UNSIGNED[itemsize])
    counts = np.zeros(_blocks(now), dtype=np.uint32)
    places: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for block in range(len(counts)):
        here = slice(block * BLOCK, (block + 1) * BLOCK)
        changed = was[here] != now[here]
        where = np.flatnonzero(changed)
        counts[block] = len(where)
        places.append(where.astype(np.uint16).view(np.uint8) if len(where) <= FEW else np.packbits(changed))
        values.append(now[here][where].view(np.uint8))
    return np.concatenate([counts.view(np.uint8), *places, *values])


def apply_changes(target: np.ndarray, delta: np.ndarray, *, itemsize: int) -> None:
    """Make the changes in an array of bytes, in place."""
    entries = target.view(UNSIGNED[itemsize])
    counts = delta[: 4 * _blocks(entries)].view(np.uint32)
    place = 4 * len(counts)
    sizes = [_place_bytes(int(count), entries[n * BLOCK : (n + 1) * BLOCK].size) for n, count in enumerate(counts)]
    values = delta[place + sum(sizes) :].view(UNSIGNED[itemsize])
    taken = 0
    for block, (count, size) in enumerate(zip(counts.tolist(), sizes, strict=True)):
        here = entries[block * BLOCK : (block + 1) * BLOCK]
        said = delta[place : place + size]
        where = said.view(np.uint16) if count <= FEW else np.flatnonzero(np.unpackbits(said, count=here.size))
        here[where] = values[taken : taken + count]
        place += size
        taken += count


def _blocks(entries: np.ndarray) -> int:
    return -(-entries.size // BLOCK)


def _place_bytes(count: int, entries: int) -> int:
    """Return how many bytes say where the changes of a block are."""
    return 2 * count if count <= FEW else -(-entries // 8)
