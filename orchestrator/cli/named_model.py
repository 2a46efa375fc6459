"""What a person names as a model: a directory, a name on the hub, a run's folder, or the name of a run."""

from pathlib import Path

from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.run.folder import RunDir

RUNS = "runs"
"""Where runs lie that no configuration places."""
LEFT = ("config.yaml", "manifest.json", "metrics.jsonl", "status.json", "trajectories", "eval")
"""What tells the folder of a run, or of an evaluation, from others."""


def path_of_run(text: str) -> Path:
    """Return the path that an argument is: as it is where something lies there, else that of the run of this name in `RUNS`."""
    named = Path(RUNS) / text
    return named if named.is_dir() and not Path(text).exists() else Path(text)


def run_folder(given: str, runs_dir: str) -> Path | None:
    """Return the folder of the run that is named, by its folder or its name in `runs_dir`; None where there is none."""
    places = (Path(given), Path(runs_dir) / given)
    return next((place for place in places if (place / "manifest.json").is_file()), None)


def require_run(folder: Path) -> RunDir:
    """Return the run in a folder. Raise `FileNotFoundError`, with the runs that there are, where none has left anything."""
    if any((folder / name).exists() for name in LEFT):
        return RunDir(folder)
    there = sorted(path.parent.name for path in Path(RUNS).glob("*/config.yaml"))
    has = f"in {RUNS}/ are {', '.join(there)}" if there else f"in {RUNS}/ of the current folder are none"
    raise FileNotFoundError(f"{folder} is no run's folder; give a run's folder or its name: {has}")


def newest_model(folder: Path) -> Path:
    """Return the newest model of a run. Raise `FileNotFoundError` where it has none yet."""
    newest = RunDir(folder).state().model
    if newest is None:
        raise FileNotFoundError(f"the run in {folder} has no model yet; run its stage init")
    return folder / newest


def model_directory(given: Path) -> Path:
    """Return the model directory that is meant: `given` itself, where it is a name on the hub its folder in the cache, or the
    newest model of the run whose folder it is.

    Raise `FileNotFoundError` where there is none.
    """
    if (given / "config.json").is_file():
        return given
    if (source := ModelSource(path=str(given))).on_hub:
        return source.folder
    if not (given / "manifest.json").is_file():
        raise FileNotFoundError(
            f"{given} is no model directory (it has no config.json) and no run's folder (it has no manifest.json)"
        )
    return newest_model(given)
