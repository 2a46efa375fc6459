"""Releases the pages of a CPU engine's key-value cache while the engine sleeps.

vLLM's CPU build accepts sleep mode but does nothing. The weights are in main memory anyway, so only the cache can be
released.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable

import torch

DONT_NEED = mmap.MADV_DONTNEED
"""The kernel drops the pages. A page is zero at its next use."""


def release_pages(tensors: Iterable[torch.Tensor]) -> None:
    """Release every page that lies wholly in these tensors' memory. The content is lost, the addresses stay valid.

    Raises `OSError` if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for start, pages in _ranges(tensors):
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(pages * mmap.PAGESIZE), DONT_NEED):
            raise OSError(
                ctypes.get_errno(), f"can't release {pages} pages of the cache: {os.strerror(ctypes.get_errno())}"
            )


def resident_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes of these tensors are in main memory: of a cache, the used blocks.

    Raises `OSError` if the kernel refuses.
    """
    libc, resident = ctypes.CDLL(None, use_errno=True), 0
    for start, pages in _ranges(tensors):
        marks = (ctypes.c_ubyte * pages)()
        if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * mmap.PAGESIZE), marks):
            raise OSError(
                ctypes.get_errno(), f"can't inspect {pages} pages of the cache: {os.strerror(ctypes.get_errno())}"
            )
        resident += sum(mark & 1 for mark in bytes(marks)) * mmap.PAGESIZE
    return resident


def nbytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of these tensors' memory. Shared memory counts once."""
    return sum(_storages(tensors).values())


def _ranges(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Return the whole pages in the tensors' memory: first address and count. Shared memory counts once."""
    ranges = []
    for start, nbytes in _storages(tensors).items():
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if (pages := (start + nbytes - first) // mmap.PAGESIZE) > 0:
            ranges.append((first, pages))
    return ranges


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
