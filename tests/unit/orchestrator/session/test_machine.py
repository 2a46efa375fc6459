"""What is read of the machine: psutil's numbers, counters of energy in a folder and in a module that stands for NVML."""

import asyncio
import io
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session import machine_watch
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.machine import Machine, Work
from temper.orchestrator.session.machine_watch import machine_watched
from temper.orchestrator.tracking.tracker import Trackers


def counters(folder: Path, *joules: float) -> None:
    """Write RAPL's counters of packages, one of a part of each, and one of the platform, which contains all."""
    places = {f"intel-rapl:{number}": (f"package-{number}", value) for number, value in enumerate(joules)}
    places |= {f"{name}:0": ("core", value) for name, (_, value) in places.items()}
    for name, (part, value) in (places | {f"intel-rapl:{len(joules)}": ("psys", 3 * sum(joules))}).items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "name").write_text(f"{part}\n")
        (place / "energy_uj").write_text(f"{round(value * 1e6)}\n")
        (place / "max_energy_range_uj").write_text("1000000000\n")


class Nvml:
    """Two GPUs that have used as many joules as they are told."""

    NVMLError = RuntimeError

    def __init__(self) -> None:
        self.joules = [5.0, 7.0]

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(used=(gpu + 1) * 10**9)

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=50 + gpu)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        return 300_000 + gpu

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:
        return round(self.joules[gpu] * 1000)


def test_energy_is_summed_over_packages_and_gpus_and_goes_over_the_end_of_a_counter(tmp_path: Path) -> None:
    gpus = Nvml()
    counters(tmp_path, 990.0, 20.0)
    machine = Machine(powercap=tmp_path, nvml=gpus)
    gpus.joules = [6.0, 7.0]
    first = machine.look()
    assert first["energy_joules"] == pytest.approx(1)  # what was used before the first look counts
    assert (first["power_watts"] > 1 / 60, machine.missing) == (True, [])
    assert (first["gpu_1_memory_usage_megabytes"], first["gpu_1_power_usage_watts"]) == (2000.0, 300.001)
    assert first["gpu_0_utilization_percentage"] == 50.0
    counters(tmp_path, 5.0, 30.0)  # the first began anew at 1000: 15 and 10
    gpus.joules = [105.0, 107.0]
    second = machine.look()
    assert second["energy_joules"] == pytest.approx(1 + 15 + 10 + 99 + 100)
    assert second["power_watts"] > 224 / 60  # in less than a minute
    gpus.joules = [2.0, 107.0]  # reset by its driver
    assert machine.look()["energy_joules"] == pytest.approx(225 + 2)


def test_without_counters_there_is_no_power_and_the_reason_is_known(tmp_path: Path) -> None:
    machine = Machine(powercap=tmp_path, nvml=None)
    seen = machine.look()
    assert set(seen) == {
        "cpu_utilization_percentage",
        "system_memory_usage_megabytes",
        "system_memory_usage_percentage",
    }
    used = psutil.virtual_memory().used / 1e6
    assert seen["system_memory_usage_megabytes"] == pytest.approx(used, rel=0.5)
    assert machine.missing == [
        f"energy of processors (no counters in {tmp_path})",
        "GPUs (nvidia-ml-py is not installed)",
    ]


class Silent(Nvml):
    """GPUs that have no counter of energy, and of which one tells nothing of its memory."""

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        if gpu == 1:
            raise self.NVMLError("Not Supported")
        return super().nvmlDeviceGetMemoryInfo(gpu)


class Failing(Nvml):
    """GPUs whose counters fail now and then."""

    fails = False

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:
        if self.fails:
            raise self.NVMLError("Unknown Error")
        return super().nvmlDeviceGetTotalEnergyConsumption(gpu)


def test_gpus_tell_what_they_can_and_what_they_can_not_is_named_once(tmp_path: Path) -> None:
    counters(tmp_path, 20.0)
    machine = Machine(powercap=tmp_path, nvml=Silent())
    for _ in range(2):
        seen = machine.look()
        assert {name for name in seen if name.startswith("gpu_")} == {
            *(f"gpu_{n}_{what}" for n in (0, 1) for what in ("utilization_percentage", "power_usage_watts")),
            "gpu_0_memory_usage_megabytes",
        }
        assert seen["energy_joules"] == 0
    assert machine.missing == ["energy of GPUs (Not Supported)", "memory_usage_megabytes of GPU 1 (Not Supported)"]


def test_what_was_counted_while_a_counter_failed_is_in_the_energy_afterwards(tmp_path: Path) -> None:
    gpus = Failing()
    counters(tmp_path, 20.0)
    machine = Machine(powercap=tmp_path, nvml=gpus)
    gpus.fails, gpus.joules = True, [9.0, 7.0]
    counters(tmp_path, 21.0)
    seen = machine.look()
    assert ("energy_joules" in seen, seen["gpu_0_power_usage_watts"]) == (False, 300.0)
    gpus.fails = False
    assert machine.look()["energy_joules"] == pytest.approx(4 + 1)
    assert machine.missing == ["energy (Unknown Error)"]


def test_energy_of_some_parts_alone_is_named_by_them(tmp_path: Path) -> None:
    read, none = tmp_path / "read", tmp_path / "none"
    counters(read, 20.0)
    assert Machine(powercap=read, nvml=Nvml()).counted == ""
    assert Machine(powercap=none, nvml=Nvml()).counted == "gpu_"
    assert Machine(powercap=read, nvml=Silent()).counted == "processor_"
    assert Machine(powercap=read, nvml=None).counted == ""  # where there are no GPUs processors are all that computes


def test_a_processor_that_works_is_seen_from_any_thread(tmp_path: Path) -> None:
    machine = Machine(powercap=tmp_path, nvml=None)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        sum(range(1000))
    with ThreadPoolExecutor(1) as elsewhere:
        share = elsewhere.submit(machine.look).result()["cpu_utilization_percentage"]
    assert 100 * 0.5 / (psutil.cpu_count() or 1) < share <= 100


def test_joules_are_told_for_each_token_and_task_that_was_counted() -> None:
    work = Work()
    assert work.costs(100.0) == {}
    work.add({"train/tokens": 300.0})
    work.add({"train/tokens_per_s": 50.0, "train/step_seconds": 2.0, "env/math/correct": 0.25, "env/math/groups": 8.0})
    work.add({"env/math/parts/correct": 1.0, "env/code/correct": 0.5, "env/code/groups": 4.0})
    assert work.costs(100.0) == {"joules_per_trained_token": 0.25, "joules_per_solved_task": 25.0}
    assert work.costs(None) == {}
    assert work.costs(100.0, counted="gpu_") == {
        "gpu_joules_per_trained_token": 0.25,
        "gpu_joules_per_solved_task": 25.0,
    }


def test_a_run_has_a_row_of_its_machine_every_so_often_and_is_told_once_what_lacks(tmp_path: Path) -> None:
    folder, said = RunDir(tmp_path / "job"), io.StringIO()
    folder.open()
    config = load_config(Path("configs/demo.yaml"), ["tracking.system_s=0.02"])
    run = RunContext(config, folder=folder, tracker=Trackers(), progress=Progress(stream=said), stop=StopFlag())

    async def work() -> None:
        async with asyncio.timeout(30), machine_watched(run, elsewhere=lambda: False):
            while len(read_metrics(folder.metrics)) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(work())
    rows = read_metrics(folder.metrics)
    assert [(row.stage, row.step) for row in rows[:3]] == [("system", 0), ("system", 1), ("system", 2)]
    assert all(row.values["system_memory_usage_megabytes"] > 0 for row in rows)
    assert said.getvalue().count("energy of processors") == (0 if "energy_joules" in rows[0].values else 1)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_joules_of_one_machine_are_not_told_for_the_tokens_of_several(
    elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters(tmp_path / "powercap", 20.0)
    monkeypatch.setattr(machine_watch, "Machine", lambda: Machine(powercap=tmp_path / "powercap", nvml=None))
    folder, said = RunDir(tmp_path / "job"), io.StringIO()
    folder.open()
    config = load_config(Path("configs/demo.yaml"), ["tracking.system_s=0.02"])
    run = RunContext(config, folder=folder, tracker=Trackers(), progress=Progress(stream=said), stop=StopFlag())
    run.work.add({"train/tokens": 300.0})

    async def work() -> None:
        async with asyncio.timeout(30), machine_watched(run, elsewhere=lambda: elsewhere):
            while len(read_metrics(folder.metrics)) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(work())
    rows = read_metrics(folder.metrics)
    assert all("energy_joules" in row.values for row in rows)
    assert all(("joules_per_trained_token" in row.values) is not elsewhere for row in rows)
    assert said.getvalue().count("run on other machines") == elsewhere
