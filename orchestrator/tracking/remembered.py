"""What of a run at a tracking server outlives the process, in `run.json`: stored before it is used."""

import json
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from temper.orchestrator.run.folder import write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """Which run of the server is ours."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The tag that the run bears."""
    run_id: str | None = None
    """Its id, as soon as that is known."""
    replaced: tuple[str, ...] = ()
    """The runs that this one replaces, as far as they are not deleted yet."""


def remembered(folder: Path) -> Remembered:
    """Return what is remembered of the run; for a new one its mark, stored before it is used for the first time."""
    path = folder / "run.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        remember(folder, Remembered())
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Remembered(mark=raw["mark"], run_id=raw["run_id"], replaced=tuple(raw.get("replaced", ())))


def remember(folder: Path, known: Remembered) -> None:
    """Store it, whole or not at all."""
    write_json(folder / "run.json", asdict(known))
