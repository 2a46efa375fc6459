"""What the driver's machine does while a run works: processors, memory, GPUs, and power where it can be read.

The names are those that MLflow gives its own system metrics. Energy is that of the whole machine as far as it has counters:
RAPL's of each processor package (David et al., "RAPL: Memory Power Estimation and Capping", 2010) and NVML's of each GPU.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

try:
    import pynvml
except ImportError:  # the CPU stack has none
    pynvml = None

MEGABYTE = 10**6
POWERCAP = Path("/sys/class/powercap")
JOULES = "energy_joules"
"""The energy since the watch began."""


class Machine:
    """Looks at the machine, again and again."""

    def __init__(self, *, powercap: Path = POWERCAP, nvml: Any = pynvml) -> None:
        """`powercap` is the folder of RAPL's counters, `nvml` the module that knows of GPUs; None where there is none."""
        self.missing: list[str] = []
        """What is not read and why, each once; what is not read is not there either."""
        self._nvml = nvml
        self._faults: tuple[type[Exception], ...] = (OSError,) if nvml is None else (OSError, nvml.NVMLError)
        """What counters raise that can't be read."""
        self._packages = _readable(powercap, self.missing)
        self._gpus = _gpus(nvml, self.missing)
        self._counting = self._have_counters()
        self._last, self._looked = self._counted(), time.monotonic()
        self._joules = 0.0
        self._times = psutil.cpu_times()

    @property
    def counted(self) -> str:
        """Of which parts energy is counted, as names of metrics begin: nothing where of all that compute, `gpu_` or
        `processor_` where of these alone, since the others have no counters that may be read.
        """
        if self._counting and not self._packages:
            return "gpu_"
        return "processor_" if self._gpus and not self._counting else ""

    def look(self) -> dict[str, float]:
        """Return what the machine does since the last look: shares in percent, memory in MB, watts and joules."""
        memory = psutil.virtual_memory()
        seen = {
            "cpu_utilization_percentage": self._busy(),
            "system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system_memory_usage_percentage": memory.percent,
        }
        for number, gpu in enumerate(self._gpus):
            seen |= self._gpu(number, gpu)
        return seen | self._energy()

    def _gpu(self, number: int, gpu: Any) -> dict[str, float]:
        """Return what a GPU tells of itself, which is not all where it is split, or shares the memory of its host."""
        ask = self._nvml
        asked: dict[str, Callable[[], float]] = {
            "utilization_percentage": lambda: float(ask.nvmlDeviceGetUtilizationRates(gpu).gpu),
            "memory_usage_megabytes": lambda: ask.nvmlDeviceGetMemoryInfo(gpu).used / MEGABYTE,
            "power_usage_watts": lambda: ask.nvmlDeviceGetPowerUsage(gpu) / 1000,
        }
        seen = {}
        for name, read in asked.items():
            try:
                seen[f"gpu_{number}_{name}"] = read()
            except self._faults as error:
                self._lacks(f"{name} of GPU {number}", error)
        return seen

    def _have_counters(self) -> bool:
        """Return whether there are GPUs and each has a counter of energy."""
        try:
            for gpu in self._gpus:
                self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
        except self._faults as error:
            self._lacks("energy of GPUs", error)
            return False
        return bool(self._gpus)

    def _lacks(self, what: str, error: Exception) -> None:
        if (told := f"{what} ({error})") not in self.missing:
            self.missing.append(told)

    def _busy(self) -> float:
        """Return the share of the processors' time that went into work, whatever thread asks: psutil's own is one a thread."""
        before, self._times = self._times, psutil.cpu_times()
        gone = {name: now - then for name, now, then in zip(before._fields, self._times, before, strict=True)}
        whole = sum(gone.values()) - gone.get("guest", 0.0) - gone.get("guest_nice", 0.0)  # these are in the user's too
        idle = gone["idle"] + gone.get("iowait", 0.0)
        return 100 * (1 - idle / whole) if whole > 0 else 0.0

    def _energy(self) -> dict[str, float]:
        """Return energy since the watch began and power since the last look; nothing where a counter can't be read.

        What was counted meanwhile is in the sum again with the next look at which all can.
        """
        try:
            counted = self._counted()
        except self._faults as error:
            self._lacks("energy", error)
            return {}
        if not counted:
            return {}
        now = time.monotonic()
        gone = sum(self._since(name, value) for name, value in counted.items())
        self._joules += gone
        power = gone / max(now - self._looked, 1e-9)
        self._last, self._looked = counted, now
        return {JOULES: self._joules, "power_watts": power}

    def _counted(self) -> dict[str, float]:
        """Return what each counter says, in joules."""
        packages = {str(place): int((place / "energy_uj").read_text()) / 1e6 for place in self._packages}
        gpus = self._gpus if self._counting else []
        return packages | {
            f"gpu {n}": self._nvml.nvmlDeviceGetTotalEnergyConsumption(g) / 1e3 for n, g in enumerate(gpus)
        }

    def _since(self, name: str, value: float) -> float:
        """Return what a counter has counted since the last look: RAPL's begin anew at their end, others are reset."""
        before = self._last[name]
        if value >= before:
            return value - before
        end = _end_of(Path(name))
        return value if end is None else value + end - before


class Work:
    """What a run has done for its energy: tokens trained, and tasks solved, each by the share of its right answers."""

    def __init__(self) -> None:
        self.tokens = 0.0
        self.tasks = 0.0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Count the metrics of one step."""
        spent = metrics.get("train/tokens_per_s", 0.0) * metrics.get("train/step_seconds", 0.0)
        self.tokens += metrics.get("train/tokens", spent)
        for name, share in metrics.items():
            if name.startswith("env/") and name.endswith("/correct") and name.count("/") == 2:
                self.tasks += share * metrics.get(f"{name.removesuffix('correct')}groups", 0.0)

    def costs(self, joules: float | None, *, counted: str = "") -> dict[str, float]:
        """Return joules for each trained token and each solved task; nothing where energy or work is not known.

        Names begin with what was `counted` (`Machine.counted`), so that no part of the energy stands for the whole.
        """
        if joules is None:
            return {}
        done = {"joules_per_trained_token": self.tokens, "joules_per_solved_task": self.tasks}
        return {f"{counted}{name}": joules / count for name, count in done.items() if count > 0}


def _readable(powercap: Path, missing: list[str]) -> list[Path]:
    """Return the counters of whole packages that may be read; why not is added to `missing`."""
    places = sorted(place for place in powercap.glob("intel-rapl:*") if place.name.count(":") == 1)
    found = [place for place in places if _is_package(place)]
    if not found:
        missing.append(f"energy of processors (no counters in {powercap})")
    readable = []
    for place in found:
        try:
            (place / "energy_uj").read_text()
        except OSError as error:
            missing.append(f"energy of processors ({place / 'energy_uj'}: {error.strerror})")
            break
        readable.append(place)
    return readable


def _is_package(place: Path) -> bool:
    """Return whether a counter is a package's, and not the whole platform's (`psys`), which contains them."""
    name = place / "name"
    return name.is_file() and name.read_text().startswith("package")


def _end_of(place: Path) -> float | None:
    """Return where a counter of RAPL begins anew, in joules; None for a GPU's, which does not."""
    limit = place / "max_energy_range_uj"
    return int(limit.read_text()) / 1e6 if limit.exists() else None


def _gpus(nvml: Any, missing: list[str]) -> list[Any]:
    """Return the GPUs that NVML knows of; why it knows of none is added to `missing`."""
    if nvml is None:
        missing.append("GPUs (nvidia-ml-py is not installed)")
        return []
    try:
        nvml.nvmlInit()
        return [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        missing.append(f"GPUs ({error})")
        return []
