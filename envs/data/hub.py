"""The only user of `huggingface_hub`: models and data sets by hub name, through the local cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Kind = Literal["model", "dataset"]
CARD = "README.md"
CACHE_ALONE: ContextVar[bool] = ContextVar("CACHE_ALONE", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The files of a hub name at one commit, in the cache."""

    folder: Path
    commit: str


@contextmanager
def cache_alone() -> Iterator[None]:
    """Use only the cache in this block, without network access."""
    before = CACHE_ALONE.set(True)
    try:
        yield
    finally:
        CACHE_ALONE.reset(before)


def download_snapshot(
    name: str, *, kind: Kind, revision: str | None, patterns: tuple[str, ...], without: tuple[str, ...] = ()
) -> Snapshot:
    """Return the files that match `patterns`, downloaded if the cache lacks them. One request per process.

    A cached commit needs no network, and neither does a cached branch if the hub is unreachable. Raise `FileNotFoundError`
    or `ValueError` with a remedy if the files are unavailable.
    """
    return _snapshot(name, kind, revision, patterns, without, CACHE_ALONE.get())


@cache
def _snapshot(
    name: str, kind: Kind, revision: str | None, patterns: tuple[str, ...], without: tuple[str, ...], cached: bool
) -> Snapshot:
    from huggingface_hub import errors, snapshot_download  # imports slowly

    at = f" at revision {revision}" if revision else ""
    try:
        folder = snapshot_download(
            name,
            repo_type=kind,
            revision=revision,
            allow_patterns=[*patterns],
            ignore_patterns=[*without],
            local_files_only=cached,
        )
    except errors.LocalEntryNotFoundError as error:
        raise FileNotFoundError(
            f"there is no folder {name}, {name}{at} is not in the hub cache of this machine, and the hub is unreachable; "
            f"run `{_download(name, kind, revision)}` on a machine with a network and copy the cache (HF_HOME) "
            f"here, or set the path of a folder"
        ) from error
    except errors.GatedRepoError as error:
        raise ValueError(
            f"{name} is gated on the hub; accept its terms on its page, then run `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(
            f"{name} has no revision {revision!r} on the hub; set a commit, tag or branch of it"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        what = "data set" if kind == "dataset" else "model"
        raise FileNotFoundError(
            f"{name} is neither on this machine nor a visible {what} on the hub; set a path or a hub "
            f"name, and run `hf auth login` for a private one"
        ) from error
    except errors.HTTPError as error:
        raise FileNotFoundError(
            f"{name}{at} could not be downloaded ({error}); try again, or run `{_download(name, kind, revision)}`"
        ) from error
    path = Path(folder)
    return Snapshot(folder=path, commit=path.name)


def find_cached_file(name: str, *, file: str, revision: str | None) -> Path | None:
    """Return a file of a model in the cache, or None."""
    from huggingface_hub import try_to_load_from_cache  # imports slowly

    found = try_to_load_from_cache(name, file, revision=revision)
    return Path(found) if isinstance(found, str) else None


def download_card(name: str, revision: str | None) -> Snapshot:
    return download_snapshot(name, kind="dataset", revision=revision, patterns=(CARD,))


def _download(name: str, kind: Kind, revision: str | None) -> str:
    repo_type = " --repo-type dataset" if kind == "dataset" else ""
    return f"hf download {name}{repo_type}" + (f" --revision {revision}" if revision else "")
