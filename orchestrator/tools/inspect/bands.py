"""The band of a recipe: measures of finished runs that differ in the seed, and the range that they predict for another run.

A band is the file RECIPE.band.json in the folder of its recipe.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite, sqrt
from pathlib import Path
from statistics import fmean, variance

from temper.envs.core.setting import Kind
from temper.orchestrator.config.model_source import GGUF, PACKAGE
from temper.orchestrator.config.text import SHIPPED, config_file, packaged_file, read_value
from temper.orchestrator.evaluation.record import read_run
from temper.orchestrator.pipeline.config import read_shown_settings, with_presets
from temper.orchestrator.pipeline.reference.resolved_file import ResolvedFile, difference_rows
from temper.orchestrator.run.folder import RunDir, write_atomically
from temper.orchestrator.run.source import DIRTY

SUFFIX = ".band.json"
HOURS = "hours"
"""The name of the measure of time."""
SIGMAS = 3.0
"""Half-width of a band in standard deviations."""
BINS = 10
"""The most bins of a reward curve."""
BINS_OUTSIDE = 0.2
"""The largest share of bins outside of their bands in a curve that is inside."""
LEAST_DEVIATION = 0.01
"""The least standard deviation of the mean reward of a bin: seeds may all reach the highest reward."""
DRIFT = 0.1
"""The least standard deviation of hours, as a share of their mean: a shared machine drifts by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """An environment's accuracy in one evaluation."""

    value: float
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasures:
    """The measures of one finished run. Accuracies and curves have the keys STAGE/ENVIRONMENT."""

    seed: int | None
    accuracies: dict[str, Accuracy]
    curves: dict[str, list[float]]
    """Mean reward of each bin of steps."""
    seconds: dict[str, float]
    """Wall time of each stage."""

    @property
    def hours(self) -> float:
        return sum(self.seconds.values()) / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Measures of runs of a recipe that differ in the seed."""

    recipe: str
    commit: str
    hardware: str
    runs: tuple[RunMeasures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A measure of a run and its band. `inside` is None without a verdict."""

    measure: str
    measured: str
    band: str
    inside: bool | None
    off: str = ""
    """The distance from the band, "" inside of it."""


def band_file(recipe: Path) -> Path:
    """Return the path of a recipe's band. Raise `FileNotFoundError` without the recipe."""
    return config_file(recipe).with_suffix(SUFFIX)


def read_band(recipe: Path) -> Band:
    """Read the band of a recipe. Raise `FileNotFoundError` without one, `ValueError` for an invalid one."""
    path = band_file(recipe)
    if not path.is_file():
        there = sorted(str(each.relative_to(SHIPPED.parent)) for each in SHIPPED.rglob(f"*{SUFFIX}"))
        have = ", ".join(each.removesuffix(SUFFIX) + ".yaml" for each in there) or "no recipe"
        raise FileNotFoundError(
            f"{recipe} has no band ({path}); {have} has one. Run the recipe with several seeds, then "
            f"`temper reproduce {recipe} --record RUN RUN RUN`"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        runs = tuple(
            RunMeasures(**run | {"accuracies": {key: Accuracy(**one) for key, one in run["accuracies"].items()}})
            for run in raw.pop("runs")
        )
        return Band(**raw, runs=runs)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a band ({type(error).__name__}: {error}); record it again") from error


def measure_run(folder: Path) -> RunMeasures:
    """Return the measures of a run. Raise `ValueError` if a stage is unfinished, and as `read_run`."""
    record = read_run(folder)
    if left := unfinished_stages(folder):
        raise ValueError(
            f"{folder} has not finished {', '.join(left)}; resume it with `temper run {folder}/config.yaml`"
        )
    accuracies = {
        f"{one.label}/{env}": Accuracy(value=result.avg_at_k, tasks=result.tasks)
        for one in record.evaluations
        for env, result in one.envs.items()
        if isfinite(result.avg_at_k)
    }
    curves = {
        f"{stage}/{env}": bin_means(record.series(stage, f"env/{env}/reward")[1])
        for stage in record.stages
        for env in record.envs_of(stage)
        if any(map(isfinite, record.series(stage, f"env/{env}/reward")[1]))
    }
    return RunMeasures(seed=record.seed, accuracies=accuracies, curves=curves, seconds=record.stage_seconds)


def unfinished_stages(folder: Path) -> list[str]:
    """Return the stages that a run has not finished."""
    done = RunDir(folder).state().done
    return [one.name for one in _settings(RunDir(folder).config).instances if one.name not in done]


def bin_means(values: Iterable[float]) -> list[float]:
    """Return the means of at most `BINS` bins of equal size, up to one, over the finite values."""
    known = [value for value in values if isfinite(value)]
    bins = min(BINS, len(known))
    ends = [len(known) * number // bins for number in range(bins + 1)] if bins else []
    return [round(fmean(known[low:high]), 4) for low, high in pairwise(ends)]


def other_settings(recipe: Path, folder: Path) -> list[str]:
    """Return how the settings of a run differ from its recipe in anything but the seed and the choices of its profile."""
    own, run = _settings(recipe), _settings(RunDir(folder).config)
    path = str(own.values["model"]["path"])
    converted = ["model.path"] if path.startswith(PACKAGE) or path.endswith(GGUF) else []
    return _differences(own, run, without=[*run.resolved.settings, *converted])


def _settings(path: Path) -> ResolvedFile:
    """Return the settings of a file. Its model may be missing."""
    given = read_shown_settings(path, [])
    return ResolvedFile(path=path, layers=(), given=given, full=with_presets(given), note="")


def _differences(first: ResolvedFile, second: ResolvedFile, without: Iterable[str] = ()) -> list[str]:
    """Return the settings that change results and differ, but for the seed."""
    skipped = {"seed", "profile", *without}
    rows = [row for row in difference_rows(first, second) if row[3] != Kind.FREE.value and row[0] not in skipped]
    return [f"{key} {before} -> {after}" for key, before, after, _ in rows]


def record_band(recipe: Path, folders: Sequence[Path]) -> Path:
    """Write the band of a recipe from finished runs of several seeds, and return its path.

    Raise `ValueError` if their settings differ from the recipe or from each other in anything but the seed, if two have the
    same seed, if they ran on different hardware, or not all at one clean commit.
    """
    if packaged_file(recipe) is not None:
        raise ValueError(f"{recipe} is a file of the package; copy it to a folder of yours, and record the copy")
    for folder in folders:
        apart = other_settings(recipe, folder)
        apart += _differences(_settings(RunDir(folders[0]).config), _settings(RunDir(folder).config), ["model.path"])
        apart += [] if _model(folder) == _model(folders[0]) else ["the content or revision of model.path"]
        if apart:
            raise ValueError(f"{folder} differs from {recipe} or {folders[0]} in {'; '.join(apart)}")
    runs = sorted((measure_run(folder) for folder in folders), key=lambda run: run.seed or 0)
    if len({run.seed for run in runs}) < len(runs):
        raise ValueError(f"the runs have the seeds {', '.join(str(run.seed) for run in runs)}; each seed must differ")
    if len({(*run.accuracies, *((key, len(curve)) for key, curve in run.curves.items())) for run in runs}) > 1:
        raise ValueError("the runs have different measures; evaluate all of them again")
    hardware = {hardware_of(folder) for folder in folders}
    if len(hardware) > 1:
        raise ValueError(f"the runs are of different hardware: {'; '.join(sorted(hardware))}")
    commits = {commit for folder in folders for commit in _commits(folder)}
    if len(commits) > 1:
        raise ValueError(f"the runs are of different commits: {', '.join(sorted(commits))}; rerun all at one")
    path = band_file(recipe)
    head = {"recipe": recipe.name, "commit": commits.pop(), "hardware": hardware.pop()}
    lines = ",\n".join("  " + json.dumps(asdict(run), allow_nan=False) for run in runs)
    write_atomically(path, json.dumps(head, indent=1).removesuffix("\n}") + f',\n "runs": [\n{lines}\n ]\n}}\n')
    return path


def _commits(folder: Path) -> list[str]:
    """Return the commits of a run. Raise `ValueError` without one, and for uncommitted changes."""
    commits = RunDir(folder).state().commits
    if not commits:
        raise ValueError(
            f"{folder} has no commit: an installed package or an older version ran it; rerun it in a checkout"
        )
    if changed := [commit for commit in commits if commit.endswith(DIRTY)]:
        raise ValueError(f"{folder} ran with uncommitted changes ({changed[0]}); commit them, and rerun it")
    return commits


def _model(folder: Path) -> list[str | None]:
    """Return the size and hash of a run's first model, or its commit on the hub. Fresh models are equal."""
    fingerprint = RunDir(folder).state().fingerprint
    return [fingerprint.get("model.path"), fingerprint.get("model.revision")]


def hardware_of(folder: Path) -> str:
    """Return the hardware of a run as its profile describes it."""
    return str(read_value(RunDir(folder).config, "resolved.hardware"))


def limits(values: Sequence[float], *, deviation: float) -> tuple[float, float]:
    """Return the range that the values of n runs predict for one more run: mean +- 3 s sqrt(1 + 1 / n).

    Three standard deviations are the limits of a control chart: Shewhart, Economic Control of Quality of Manufactured Product
    (1931). The factor accounts for the error of the mean of n runs, as in Student's prediction interval. Three runs are too
    few for Student's own quantile. So `deviation` is pooled, with a known noise as its least value.
    """
    half = SIGMAS * deviation * sqrt(1 + 1 / len(values))
    return fmean(values) - half, fmean(values) + half


def pooled_deviation(samples: Iterable[Sequence[float]]) -> float:
    """Return the root of the mean variance of samples of equal size, 0 for samples of one value."""
    known = [variance(values) for values in samples if len(values) > 1]
    return sqrt(fmean(known)) if known else 0.0


def accuracy_noise(accuracy: float, tasks: int) -> float:
    """Return the standard error of an accuracy over `tasks`, which is above 0 even if all answers are right.

    It is the error of a binomial share after one success and one failure are added: Laplace's rule of succession.
    """
    share = (accuracy * tasks + 1) / (tasks + 2)
    return sqrt(share * (1 - share) / tasks)


def compare(run: RunMeasures, band: Band, *, same_hardware: bool) -> list[Verdict]:
    """Compare each measure of a band with a run. A measure that the run lacks is outside."""
    found = [_accuracy(key, run, band) for key in band.runs[0].accuracies]
    found += [_curve(key, run, band) for key in band.runs[0].curves]
    return [*found, _hours(run, band, same_hardware=same_hardware)]


def _accuracy(key: str, run: RunMeasures, band: Band) -> Verdict:
    """The deviation between seeds is pooled over the environments of the evaluation."""
    label, _, env = key.partition("/")
    same = [other for other in band.runs[0].accuracies if other.partition("/")[0] == label]
    spread = pooled_deviation([[each.accuracies[other].value for each in band.runs] for other in same])
    values = [each.accuracies[key].value for each in band.runs]
    tasks = min(each.accuracies[key].tasks for each in band.runs)
    low, high = limits(values, deviation=max(spread, accuracy_noise(fmean(values), tasks)))
    measured = run.accuracies[key].value if key in run.accuracies else None
    return _verdict(f"accuracy after {label}: {env}", measured, max(0.0, low), min(1.0, high))


def _curve(key: str, run: RunMeasures, band: Band) -> Verdict:
    """The deviation between seeds is pooled over the bins."""
    stage, _, env = key.partition("/")
    name, curves = f"reward during {stage}: {env}", [each.curves[key] for each in band.runs]
    measured, bins = run.curves.get(key, []), len(curves[0])
    if len(measured) != bins:
        return Verdict(measure=name, measured=f"{len(measured)} bins", band=f"{bins} bins", inside=False, off="missing")
    by_bin = list(zip(*curves, strict=True))
    deviation = max(pooled_deviation(by_bin), LEAST_DEVIATION)
    ends = [limits(values, deviation=deviation) for values in by_bin]
    off = [max(low - value, value - high, 0.0) for value, (low, high) in zip(measured, ends, strict=True)]
    inside, needed = sum(not one for one in off), bins - int(BINS_OUTSIDE * bins)
    return Verdict(
        measure=name,
        measured=f"{inside} of {bins} bins",
        band=f"{needed} or more",
        inside=inside >= needed if len(curves) > 1 else None,
        off=f"at most {max(off):.3f}, in bin {off.index(max(off)) + 1}" if any(off) else "",
    )


def _hours(run: RunMeasures, band: Band, *, same_hardware: bool) -> Verdict:
    """Only more hours are outside."""
    hours = [each.hours for each in band.runs]
    deviation = max(pooled_deviation([hours]), DRIFT * fmean(hours))
    return _verdict(HOURS, run.hours, 0.0, limits(hours, deviation=deviation)[1], judged=same_hardware)


def _verdict(name: str, measured: float | None, low: float, high: float, *, judged: bool = True) -> Verdict:
    band = f"{low:.3f} to {high:.3f}"
    if measured is None:
        return Verdict(measure=name, measured="-", band=band, inside=False, off="missing")
    above, below = measured - high, low - measured
    off = f"{above:.3f} above" if above > 0 else f"{below:.3f} below" if below > 0 else ""
    return Verdict(measure=name, measured=f"{measured:.3f}", band=band, inside=not off if judged else None, off=off)
