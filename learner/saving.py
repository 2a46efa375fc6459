"""Saving of a checkpoint in two parts: copy to main memory while training waits, then write during training."""

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from temper.learner.engine.deepspeed_engine import DeepSpeedEngine, saved_buffers
from temper.learner.engine.model_files import Piece, bytes_piece, file_piece
from temper.learner.models.adapters import is_adapter
from temper.learner.models.loading import full_shape
from temper.learner.training_state import STATE_FOLDER, CheckpointFacts, model_bytes, state_bytes
from temper.rollout.weights.host_memory import SPARE, available_bytes

HEADERS_BYTES = 2**21
"""Upper bound of headers, the index and small files of a checkpoint."""


class PendingCheckpoint:
    """The copied but unwritten pieces of a rank."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[Piece, Path]] = deque()

    def add(self, pieces: Iterable[tuple[Piece, Path]], *, hold: bool) -> bool:
        """Store the pieces of a checkpoint, each with its directory, if `hold` is set. Otherwise write each at once.

        Returns whether pieces remain to be written. Pieces of an abandoned checkpoint are discarded.
        """
        self._pieces = deque()
        if hold:
            self._pieces.extend(pieces)
        else:
            for piece, directory in pieces:
                piece(directory)
        return bool(self._pieces)

    def write(self) -> None:
        """Write the pieces and free their memory one by one. May run in another thread than `add`."""
        pieces, self._pieces = self._pieces, deque()
        while pieces:
            piece, directory = pieces.popleft()
            piece(directory)


def checkpoint_pieces(
    engine: DeepSpeedEngine, target: Path, *, rank: int, facts: CheckpointFacts, tokenizer: dict[str, bytes]
) -> Iterator[tuple[Piece, Path]]:
    """Yield a rank's copied pieces of the checkpoint `target`, each with its directory. Collective over the ranks."""
    state = target / STATE_FOLDER
    state.mkdir(parents=True, exist_ok=True)
    for piece in engine.model_pieces():
        yield piece, target
    for piece in engine.state_pieces():
        yield piece, state
    yield file_piece(random_file(rank), random_states()), state
    if rank == 0:
        yield facts.write, target
        for name, content in tokenizer.items():
            yield bytes_piece(name, content), target


def checkpoint_bytes(model: PreTrainedModel, *, bf16: bool, ema: bool = False) -> int:
    """Return an upper bound of a checkpoint's bytes."""
    counts = {name: full_shape(p).numel() for name, p in model.named_parameters()}
    adapters = sum(count for name, count in counts.items() if is_adapter(name))
    weights = sum(counts.values()) - adapters
    trained = sum(counts[name] for name, p in model.named_parameters() if p.requires_grad)
    buffers = sum(buffer.numel() for buffer in saved_buffers(model).values())
    state = state_bytes(trained, bf16=bf16, adapters=adapters, ema=ema)
    return model_bytes(weights, bf16=bf16, buffers=buffers) + state + HEADERS_BYTES


def has_room(nbytes: int) -> bool:
    """Return whether main memory has room for a copy of `nbytes` bytes."""
    available, total = available_bytes()
    return available - nbytes > SPARE * total


def random_file(rank: int) -> str:
    return f"rng-{rank}.safetensors"


def random_states() -> dict[str, torch.Tensor]:
    """Return the states of torch's random generators: the CPU's, and the GPU's if there is one."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def read_random_states(file: Path) -> None:
    """Restore the random states of a rank's file; the GPU's only if there is one.

    A rank that is new since the checkpoint has no file and keeps its state.
    """
    if not file.exists():
        return
    states = load_file(file)
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
