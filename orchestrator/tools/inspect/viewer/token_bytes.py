"""The bytes of token ids, so that a page can show characters that several tokens make together."""

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from temper.orchestrator.run.folder import RunDir

FILE = "tokenizer.json"


class TokenBytes:
    """The bytes of the ids of one tokenizer. The bytes of a text are the concatenated bytes of its tokens."""

    def __init__(self, path: Path) -> None:
        """Read a `tokenizer.json`. Raise `ValueError` if it is invalid."""
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # its errors have no type of their own
            raise ValueError(f"{path} is not a readable tokenizer: {error}") from error
        decoder = self._tokenizer.decoder
        self._of_bytes = decoder is not None and b"ByteLevel" in decoder.__getstate__()
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._known: dict[int, str] = {}

    def of(self, token_id: int) -> str:
        """Return the bytes of an id as Latin-1 characters. An unknown id returns its number."""
        if token_id not in self._known:
            self._known[token_id] = self._bytes(token_id).decode("latin-1")
        return self._known[token_id]

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].content.encode()
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return f"<{token_id}>".encode()
        if self._of_bytes:
            table = byte_of_character()
            return bytes(table[character] for character in piece) if set(piece) <= table.keys() else piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("\u2581", " ").encode()


def tokenizer_of(model: Path) -> TokenBytes | None:
    """Return the ids of a model directory. None without a `tokenizer.json`."""
    return TokenBytes(model / FILE) if (model / FILE).is_file() else None


def tokenizer_of_run(run: RunDir) -> TokenBytes | None:
    """Return the ids of the run's newest model. None if it no longer exists."""
    model = run.state().model
    return None if model is None else tokenizer_of(run.root / model)


@cache
def byte_of_character() -> dict[str, int]:
    """Return the byte of each character in byte-level vocabularies.

    Printable bytes are themselves, and the others are the characters from 256 on: Radford et al., "Language Models are
    Unsupervised Multitask Learners", section 2.2, 2019, and its published code.
    """
    printing = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + place): byte for place, byte in enumerate(others)}
