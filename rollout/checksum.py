"""A checksum of a push's bytes, wherever they lie."""

from hashlib import blake2b, shake_128

import numpy as np
import torch

CHECKSUM_BYTES = 16
ROW = 512
KEYS = np.frombuffer(shake_128(b"temper").digest(8 * ROW), dtype=np.uint64) | np.uint64(1)
"""Odd numbers, so that no change of a single word is lost when it is multiplied."""
ROW_BYTES = 8 * ROW
PIECE_BYTES = 2**20
"""Bytes that are hashed at once after they were written: less than a core's cache holds."""
PIECE_ROWS = 2**14
"""Rows on a GPU whose products exist at once."""


def checksum(data: np.ndarray) -> str:
    """128 bits, in hexadecimal, that tell damage and mistakes (not malice) in an array's bytes; as fast as copying them.

    BLAKE2b of a hash of each row of 4 KiB: its words times fixed keys, summed modulo 2**64 (multilinear hashing: Lemire
    and Kaser, "Strongly universal string hashing is fast", 2014). CRC-32 would take twice as long, BLAKE2 ten times.
    """
    return RunningChecksum(data).digest()


class RunningChecksum:
    """`checksum` of an array while it is written, from its beginning on: what was just written still lies in the caches."""

    def __init__(self, data: np.ndarray) -> None:
        self._rows = data[: data.nbytes // ROW_BYTES * ROW_BYTES].view(np.uint64).reshape(-1, ROW)
        self._rest = data[self._rows.nbytes :]
        self._hashes = np.empty(len(self._rows), dtype=np.uint64)
        self._hashed = 0

    def reach(self, nbytes: int) -> None:
        """Everything before `nbytes` is written, and stays."""
        start, stop = self._hashed, min(nbytes // ROW_BYTES, len(self._rows))
        if stop - start >= PIECE_BYTES // ROW_BYTES or stop == len(self._rows):
            self._hashes[start:stop] = self._rows[start:stop] @ KEYS
            self._hashed = stop

    def digest(self) -> str:
        """The checksum; all is written."""
        self.reach(self._rows.nbytes)
        return _digest(self._hashes, self._rest)


class DeviceChecksum:
    """The same for a tensor on a GPU, where it is computed at the end."""

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data

    def reach(self, nbytes: int) -> None:
        """See `RunningChecksum.reach`."""

    def digest(self) -> str:
        """See `RunningChecksum.digest`."""
        return device_checksum(self._data)


def running_checksum(data: torch.Tensor) -> RunningChecksum | DeviceChecksum:
    """For a uint8 tensor that is about to be written."""
    return DeviceChecksum(data) if data.is_cuda else RunningChecksum(data.numpy())


def copy_checked(target: np.ndarray, source: np.ndarray) -> str:
    """Copy the bytes of one array into another; the checksum of what is then there."""
    running = RunningChecksum(target)
    for start in range(0, len(source), PIECE_BYTES):
        target[start : start + PIECE_BYTES] = source[start : start + PIECE_BYTES]
        running.reach(start + PIECE_BYTES)
    return running.digest()


def tensor_checksum(data: torch.Tensor) -> str:
    """`checksum` of a uint8 tensor, computed where it lies."""
    return device_checksum(data) if data.is_cuda else checksum(data.numpy())


def device_checksum(data: torch.Tensor) -> str:
    """`checksum` by torch's operations, a few rows at a time: signed words, since a GPU multiplies no others."""
    keys = torch.from_numpy(KEYS.view(np.int64)).to(data.device)
    whole = data.numel() // ROW_BYTES * ROW_BYTES
    rows = data[:whole].view(torch.int64).view(-1, ROW)
    hashes = torch.cat([(piece * keys).sum(1) for piece in rows.split(PIECE_ROWS)])
    return _digest(hashes.cpu().numpy(), data[whole:].cpu().numpy())


def _digest(hashes: np.ndarray, rest: np.ndarray) -> str:
    """Of the rows' hashes and what is left, less than a row."""
    return blake2b(hashes.tobytes() + rest.tobytes(), digest_size=CHECKSUM_BYTES).hexdigest()
