"""The pages of an engine's key-value cache on a CPU: given back to the system while the engine sleeps.

vLLM's CPU build takes the calls of its sleep mode and does nothing. On a CPU the weights lie in main memory already, which is
where a GPU's are moved to, so that the cache is what is left to be given back.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable

import torch

DONT_NEED = mmap.MADV_DONTNEED
"""The kernel takes the pages away; at its next use a page is new, and zero."""


def release_pages(tensors: Iterable[torch.Tensor]) -> None:
    """Give back every page that lies wholly in the memory of these tensors. What it held is lost, its addresses stay.

    Raises `OSError` where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for start, pages in _ranges(tensors):
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(pages * mmap.PAGESIZE), DONT_NEED):
            raise OSError(ctypes.get_errno(), f"{pages} pages of the cache: {os.strerror(ctypes.get_errno())}")


def resident_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes of these tensors are in main memory: of a cache the blocks that were used.

    Raises `OSError` where the kernel does not say.
    """
    libc, resident = ctypes.CDLL(None, use_errno=True), 0
    for start, pages in _ranges(tensors):
        marks = (ctypes.c_ubyte * pages)()
        if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * mmap.PAGESIZE), marks):
            raise OSError(ctypes.get_errno(), f"{pages} pages of the cache: {os.strerror(ctypes.get_errno())}")
        resident += sum(mark & 1 for mark in bytes(marks)) * mmap.PAGESIZE
    return resident


def nbytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of these tensors' memory; what layers share counts once."""
    return sum(_storages(tensors).values())


def _ranges(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Return the whole pages of the tensors' memory: the address of the first, and how many; memory that is shared once."""
    ranges = []
    for start, nbytes in _storages(tensors).items():
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if (pages := (start + nbytes - first) // mmap.PAGESIZE) > 0:
            ranges.append((first, pages))
    return ranges


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
