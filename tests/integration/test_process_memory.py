"""How the memory of a job's processes is judged."""

import os

import psutil
import pytest
from support.process_memory import DRIVER, PARTS, Memory, MemoryWatch, kind_of, resident


def memory(kind: str, *, seconds: int, growth: float, early: float = 0.0) -> Memory:
    """A process of 100 MB that grows evenly after its warm-up, by `growth` in all, and by `early` before."""
    samples = []
    for at in range(0, seconds + 1, 5):
        size = 1e8 * (1 + early * min(at / 120, 1) + growth * max(0, at - 120) / (seconds - 120))
        samples.append((float(at), dict.fromkeys(PARTS, int(size))))
    return Memory(kind=kind, began=0.0, samples=samples)


def watch(*seen: Memory) -> MemoryWatch:
    made = MemoryWatch(1)
    made.seen = {(number, 0.0): one for number, one in enumerate(seen)}
    return made


def test_growth_after_the_warm_up_is_told_and_growth_in_it_is_not() -> None:
    grows = watch(memory(DRIVER, seconds=1800, growth=0.08))
    assert [problem.partition(" in ")[0] for problem in grows.problems()] == ["driver has grown by 7.7 %"]
    assert watch(memory(DRIVER, seconds=1800, growth=0.02, early=3.0)).problems() == []
    assert watch(memory(DRIVER, seconds=1800, growth=-0.3)).problems() == []


def test_what_a_step_takes_for_a_moment_is_no_growth_and_hides_none() -> None:
    for growth, flat in ((0.0, True), (0.08, False)):
        steps = memory("ray::TrainerWorker", seconds=1200, growth=growth)
        for _, sizes in steps.samples[::3] + steps.samples[-5:]:
            sizes.update({part: int(size * 1.3) for part, size in sizes.items()})
        assert steps.flat is flat


def test_a_small_process_may_grow_by_three_megabytes() -> None:
    small = [memory("raylet", seconds=1800, growth=share) for share in (0.09, 0.12)]
    for one in small:
        one.samples = [(at, {part: size // 3 for part, size in sizes.items()}) for at, sizes in one.samples]
    assert [one.flat for one in small] == [True, False]
    assert not memory("raylet", seconds=1800, growth=0.09).flat


def test_of_many_processes_of_a_kind_each_is_judged() -> None:
    flat, grows = (memory("VLLM::EngineCore", seconds=600, growth=share) for share in (0.0, 0.2))
    young = memory("VLLM::EngineCore", seconds=200, growth=2.0)
    found = watch(memory(DRIVER, seconds=600, growth=0.0), flat, grows, young)
    assert len(found.problems()) == 1
    assert "VLLM::EngineCore has grown" in found.problems()[0]
    assert found.table()[2].split()[:4] == ["VLLM::EngineCore", "3", "2", "600"]


def test_a_process_that_was_not_looked_at_for_a_while_is_judged_by_what_was_seen() -> None:
    whole = memory(DRIVER, seconds=1800, growth=0.08)
    whole.samples = [sample for sample in whole.samples if not 100 < sample[0] < 300]
    assert whole.growth == pytest.approx(0.067, abs=0.002)
    whole.samples = [sample for sample in whole.samples if sample[0] < 400]
    assert not whole.judged
    whole.samples = []
    assert not whole.judged


def test_a_driver_that_could_not_be_judged_is_a_problem() -> None:
    (problem,) = watch(memory(DRIVER, seconds=200, growth=0.0)).problems()
    assert problem == "the driver's memory can't be judged: it was not seen for 4 minutes"


def test_processes_are_sampled_until_they_are_gone() -> None:
    own = psutil.Process()
    found = MemoryWatch(own.pid)
    found.sample([own, own])
    ((about, one),) = found.seen.items()
    assert about[0] == own.pid
    assert one.kind == DRIVER
    assert len(one.samples) == 2
    sizes = resident(os.getpid())
    assert sizes["VmRSS"] == pytest.approx(sum(sizes[part] for part in PARTS[1:]), rel=0.05)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("ray::RolloutWorker.start", "ray::RolloutWorker"),
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        ("/x/python -u /y/dashboard/agent.py --node-id=1", "agent.py"),
        ("/x/python -m temper.envs.sandbox.zygote_main a", "temper.envs.sandbox.zygote_main"),
        ("/x/python -c from multiprocessing.resource_tracker import main;main(9)", "multiprocessing.resource_tracker"),
        ("/x/raylet --python_worker_command=/x/python /y/setup_worker.py", "raylet"),
        ("/x/gcs_server --log_dir=/tmp", "gcs_server"),
        ("", ""),
    ],
)
def test_processes_are_named_by_what_they_run(command: str, kind: str) -> None:
    assert kind_of(command) == kind
