"""`doctor`: each check finds the fault that is planted for it and says the remedy; a sound configuration has none."""

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import pytest
from support import tiny_models
from support.documents import tutorial_block as block
from support.two_nodes import Nodes

from temper.envs.core.errors import EpisodeTimeout
from temper.envs.sandbox.seal_probe import KERNEL
from temper.learner.models.fresh import FreshModelConfig, byte_tokenizer, hybrid_config
from temper.orchestrator.__main__ import main
from temper.orchestrator.cluster.hardware import Hardware, Machine
from temper.orchestrator.cluster.node_facts import NodeFacts, NodeSeen, ask_nodes, checksum, listen, reach
from temper.orchestrator.cluster.placement import Wanted
from temper.orchestrator.cluster.ray_cluster import ray
from temper.orchestrator.cluster.this_machine import ROOT, free_port
from temper.orchestrator.pipeline.config import Config, load_config
from temper.orchestrator.pipeline.finding import Finding, Level, ok
from temper.orchestrator.tools.preflight.doctor.check import Check, examined, of_error
from temper.orchestrator.tools.preflight.doctor.checks import CHECKS, examine, start_notes
from temper.orchestrator.tools.preflight.doctor.gpus import (
    check_devices,
    check_driver,
    check_kernels,
    gpus_in_use,
    read_driver,
)
from temper.orchestrator.tools.preflight.doctor.machine import (
    check_isolation,
    check_open_files,
    check_ports,
    check_versions,
    read_lock,
    tried,
)
from temper.orchestrator.tools.preflight.doctor.nodes import check_head, check_nodes
from temper.orchestrator.tools.preflight.doctor.room import (
    check_available,
    check_memory,
    check_pushes,
    check_room,
    check_shm,
)
from temper.orchestrator.tools.preflight.doctor.store import check_store
from temper.orchestrator.tools.preflight.doctor.subject import Subject, read_subject
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import Site
from temper.orchestrator.tools.preflight.plan.model import planned_model
from temper.orchestrator.tools.preflight.plan.planner import Planner

DEMO = Path("configs/demo.yaml")
GIB = 2**30
SMALL = Machine(gpus=1, gpu_gib=24.0, memory_gib=64.0, cpus=8)
ROW = '{{"question": "What is {} + 1?", "answer": "#### {}"}}\n'


@dataclass(frozen=True)
class Planted:
    """A fault, and what must be said of it."""

    check: str
    """The check that finds it, which must be in the list."""
    level: Level
    text: str
    remedy: str
    found: Callable[[Path], Finding]


FAULTS: list[Planted] = []
Plant = Callable[[Path], Finding]
FAILURE, WARNING = Level.FAILURE, Level.WARNING


def planted(check: str, level: Level, text: str, remedy: str) -> Callable[[Plant], Plant]:
    """Add a fault to the list: the function plants it in a folder and returns what is found."""

    def add(found: Plant) -> Plant:
        FAULTS.append(Planted(check, level, text, remedy, found))
        return found

    return add


def demo(*overrides: str) -> Config:
    return load_config(DEMO, ["name=examined", *overrides])


def worst(check: str, subject: Subject) -> Finding:
    """The worst finding of one check."""
    found = list(examined([one for one in CHECKS if one.name == check], subject))
    assert found, f"{check} says nothing"
    return max(found, key=lambda one: list(Level).index(one.level))


def of_demo(check: str, *overrides: str) -> Finding:
    return worst(check, Subject(given=demo(*overrides)))


def looked(work: Callable[[], Finding | None]) -> Finding:
    """What is found where a check does this work, which may raise."""
    check = Check(name="", remedy="none", look=lambda _: [work() or ok("")])
    return next(examined([check], Subject()))


def rows(folder: Path, *lines: str, name: str = "rows.jsonl") -> Path:
    made = [ROW.format(number, number + 1) for number in range(64)]
    (folder / name).write_text("".join([*made, *lines]))
    return folder / name


def with_template(folder: Path, text: str) -> list[str]:
    """The settings of a model whose chat template is this one."""
    (folder / "chat.jinja").write_text(text)
    return [
        f"model.path={tiny_models.nemotron_h(folder / 'model')}",
        f"model.chat_template={folder}/chat.jinja",
    ]


@planted("configuration", FAILURE, "unknown key 'step'", "did you mean 'steps'?")
def wrong_key(folder: Path) -> Finding:
    return worst("configuration", read_subject(DEMO, ["rl.step=7"]))


LOCK = "# made\nTorch==2.13.0+cpu\n    # via x\nnumpy==2.4.1\nray==2.0 ; x\nrich==1.0\n"
INSTALLED = {"torch": "2.13.0+cu130", "numpy": "2.4.1+local", "ray": "2.0", "more": "1"}


@planted("versions", FAILURE, "1 of 4 packages of lock.txt are missing: rich", "make setup")
def missing_package(folder: Path) -> Finding:
    (folder / "lock.txt").write_text(LOCK)
    return next(check_versions(read_lock(folder / "lock.txt"), INSTALLED, name="lock.txt"))


@planted(
    "versions", WARNING, "1 of 4 packages are of other versions than in lock.txt: torch 2.13.0+cu130", "make setup"
)
def other_versions(folder: Path) -> Finding:
    (folder / "lock.txt").write_text(LOCK)
    return next(check_versions(read_lock(folder / "lock.txt"), INSTALLED | {"rich": "1.0"}, name="lock.txt"))


@planted("driver", FAILURE, "driver 570.86 is older than 580", "580 or later")
def old_driver(folder: Path) -> Finding:
    return check_driver("570.86", cuda="13.0", gpus=1)


@planted("driver", FAILURE, "no driver answers", "STACK=cpu")
def no_driver(folder: Path) -> Finding:
    return check_driver(None, cuda="13.0", gpus=0)


@planted("driver", FAILURE, "may use no GPU", "CUDA_VISIBLE_DEVICES")
def hidden_gpus(folder: Path) -> Finding:
    return check_driver("580.1", cuda="13.0", gpus=0)


@planted("driver", WARNING, "torch is a build for CPUs", "STACK=gpu")
def unused_gpu(folder: Path) -> Finding:
    return check_driver("580.1", cuda=None, gpus=0)


@planted("driver", WARNING, "GPU 1 has 70112 MiB in use", "CUDA_VISIBLE_DEVICES")
def gpu_in_use(folder: Path) -> Finding:
    told = read_driver("580.65.06, 4\n580.65.06, 70112\n580.65.06, [N/A]\n")
    assert list(gpus_in_use(told, "0,2")) == []  # as its remedy says
    assert len(list(gpus_in_use(told, "1"))) == 1
    (found,) = gpus_in_use(told, None)
    return found


@planted("open files", WARNING, "1024 files open", "ulimit -n")
def few_files(folder: Path) -> Finding:
    return check_open_files(1024)


@planted("ports", FAILURE, "no 16 free ports", "end what holds them")
def ports_taken(folder: Path) -> Finding:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        return check_ports(range(port, port + 1))


@planted("sandbox", FAILURE, "level 2 of 3, and sandbox.min_level=3: NOT STOPPED: find_files", KERNEL)
def low_sandbox(folder: Path) -> Finding:
    return check_isolation(tried(max_level=2), least=3, programs=True)


@planted("sandbox", WARNING, "no environment needs it", KERNEL)
def low_sandbox_without_programs(folder: Path) -> Finding:
    return check_isolation(tried(max_level=2), least=3, programs=False)


@planted("model", FAILURE, "not a whole safetensors file", "download it again")
def torn_model(folder: Path) -> Finding:
    model = tiny_models.qwen3(folder / "model")
    (model / "model.safetensors").write_bytes(b"torn")
    return worst("model", read_subject(DEMO, [f"model.path={model}"]))


@planted("model", WARNING, "nobody/nothing is not on this machine", "hf download nobody/nothing")
def model_elsewhere(folder: Path) -> Finding:
    return worst("model", read_subject(DEMO, ["model.path=nobody/nothing"]))


@planted("output layer", FAILURE, "there is no lm_head.weight", "tie_word_embeddings in config.json to true")
def no_output_layer(folder: Path) -> Finding:
    model = tiny_models.qwen3_tied(folder / "model")
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": False}))
    return of_demo("output layer", f"model.path={model}")


@planted("output layer", WARNING, "lm_head.weight, which is left aside", "to false")
def unused_output_layer(folder: Path) -> Finding:
    model = tiny_models.qwen3(folder / "model")
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": True}))
    return of_demo("output layer", f"model.path={model}")


@planted("kernels", FAILURE, "the kernels of mamba", "STACK=cpu")
def no_kernels(folder: Path) -> Finding:
    config = hybrid_config(FreshModelConfig(), byte_tokenizer())
    return looked(lambda: check_kernels(config, device="cuda"))


@planted("devices", FAILURE, "the run wants 4 GPUs", "rollout.workers")
def few_gpus(folder: Path) -> Finding:
    return check_devices(Wanted(ranks=1, engines=3), SMALL)


@planted("devices", WARNING, "2 CPU cores and 64 GiB of memory for 8 processes", "lower learner.ranks")
def few_cores(folder: Path) -> Finding:
    return check_devices(Wanted(ranks=4, engines=4), replace(SMALL, gpus=0, cpus=2))


def planner(config: Config, machine: Machine, *, shm: int = GIB) -> Planner:
    site = Site(hardware=Hardware(machines=(machine,)), card=None, shm_bytes=shm, named=False)
    return Planner(config, planned_model(config.model, config.learner), site, Assumptions())


@planted("memory", FAILURE, "main memory of a machine: needs", "machines with 2 GiB of main memory")
def little_memory(folder: Path) -> Finding:
    *_, last = check_memory(planner(demo(), replace(SMALL, gpus=0, memory_gib=0.5)))
    return last


@planted("memory", FAILURE, "a rank's memory: needs", "GPUs of 4 GiB")
def small_gpus(folder: Path) -> Finding:
    return next(check_memory(planner(demo(), replace(SMALL, gpus=2, gpu_gib=2.5))))


@planted("memory", WARNING, "less than 15% of a GPU over", "GPUs of 4 GiB")
def nearly_large_enough_gpus(folder: Path) -> Finding:
    rank = planner(demo(), replace(SMALL, gpus=2)).rank
    assert rank is not None
    failed = next(check_memory(planner(demo(), replace(SMALL, gpus=2, gpu_gib=rank.peak / GIB / 1.17))))
    assert failed.level is FAILURE
    return next(check_memory(planner(demo(), replace(SMALL, gpus=2, gpu_gib=rank.peak / GIB / 1.13))))


@planted("memory", WARNING, "needs 2.0 GiB of main memory, and 1.0 GiB are available now", "end what uses it")
def memory_in_use(folder: Path) -> Finding:
    return check_available(2 * GIB, GIB)


@planted("push", WARNING, "64.0 MiB free", "--shm-size")
def small_shm(folder: Path) -> Finding:
    return check_shm(2**26)


@planted("push", FAILURE, "bytes of weights in main memory", "learner.wire_dtype=bfloat16")
def large_push(folder: Path) -> Finding:
    small = planner(demo(), replace(SMALL, gpus=0, memory_gib=0.001), shm=2**20)
    return next(check_pushes(small))


@planted("room", FAILURE, "bytes free and a checkpoint of", "runs_dir=")
def no_room(folder: Path) -> Finding:
    huge = ["hidden_size=65536", "intermediate_size=1048576", "pattern=----"]
    return of_demo("room", *(f"model.fresh.{setting}" for setting in huge))


@planted("room", WARNING, "3 checkpoints of 0.4 GB take 1.2", "checkpoints.keep")
def little_room(folder: Path) -> Finding:
    return check_room(folder, free=10**9, size=4 * 10**8, keep=1, there=[0, 0])


def test_an_evaluation_wants_no_room_for_checkpoints() -> None:
    found = of_demo("room", "stages=[init,eval]")
    assert found.level is Level.OK
    assert found.what.endswith("free, and no stage writes checkpoints")


def test_checkpoints_that_are_there_already_need_no_room(tmp_path: Path) -> None:
    config = demo(f"runs_dir={tmp_path}")
    size = Subject(given=config).planner.model.checkpoint_bytes
    before = of_demo("room", f"runs_dir={tmp_path}")
    assert f"5 checkpoints of {size / 1e9:.3g} GB take {5 * size / 1e9:.3g}" in before.what
    for stage, steps in (("init", 9), ("sft", 2), ("rl", 3)):  # one more than is kept, the best
        for step in range(steps):
            folder = tmp_path / "examined" / "checkpoints" / stage / f"{step:06d}"
            folder.mkdir(parents=True)
            with (folder / "model.safetensors").open("wb") as file:
                file.truncate(size)
    assert f"take {size / 1e9:.3g} more" in of_demo("room", f"runs_dir={tmp_path}").what


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}assistant: "


@planted("thoughts", FAILURE, "thought", "")
def no_thoughts(folder: Path) -> Finding:
    return of_demo("thoughts", *with_template(folder, PLAIN), "rl.thinking={budget: 0.5, budgets: [16]}")


@planted("end of turn", FAILURE, "writes no token of its own behind an assistant's turn", "model.end_of_turn")
def no_end_of_turn(folder: Path) -> Finding:
    return of_demo("end of turn", *with_template(folder, PLAIN.replace("<|im_end|>", "").replace("m.role", "1")))


@planted("tool calls", FAILURE, "the environments have tools, but", "model.tool_calls")
def no_tools(folder: Path) -> Finding:
    return of_demo("tool calls", *with_template(folder, PLAIN))


@planted("rows", FAILURE, "rows.jsonl:65: not a JSON object", "mend the row")
def torn_row(folder: Path) -> Finding:
    return of_demo("rows", f"envs.math.data={rows(folder, 'no JSON')}")


@planted("rows", WARNING, "1 that can't be used", "envs.math.on_error=raise")
def skipped_row(folder: Path) -> Finding:
    return of_demo("rows", f"envs.math.data={rows(folder, 'no JSON')}", "envs.math.on_error=skip")


@planted("rows", WARNING, "nobody/nothing is not on this machine", "hf download --repo-type dataset nobody/nothing")
def rows_elsewhere(folder: Path) -> Finding:
    return of_demo("rows", "envs.math.data=nobody/nothing")


@planted("stages", FAILURE, "'math' has no demonstrations", "")
def no_demonstrations(folder: Path) -> Finding:
    return of_demo("stages", f"envs.math.data={rows(folder)}")


SHORT = ("rollout.limits.total_tokens=20", "rollout.limits.turn_tokens=20")


@planted("prompts", FAILURE, "64 of 64 rows leave no token for an answer", "raise the limit")
def long_prompts(folder: Path) -> Finding:
    return of_demo("prompts", f"envs.math.data={rows(folder)}", *SHORT)


@planted("environments", FAILURE, "leaves none for an answer", "rollout.limits.total_tokens")
def long_generated_prompts(folder: Path) -> Finding:
    return of_demo("environments", *SHORT)


@planted("overlap", WARNING, "64 of 64 prompts are among 64 training prompts", "envs.math.drop_overlap=exact")
def evaluation_that_is_trained_on(folder: Path) -> Finding:
    test = rows(folder, name="test.jsonl")
    return of_demo("overlap", f"envs.math.data={rows(folder)}", f"envs.math.eval_data={test}")


@planted("limits", WARNING, "cuts the episodes of tool_use short", "leave the smaller setting out")
def few_turns(folder: Path) -> Finding:
    return of_demo("limits", "rollout.limits.turns=2")


@planted("environments", FAILURE, "own: 0 of 8 gold answers are right", "temper env check --env backwards")
def wrong_gold(folder: Path) -> Finding:
    source = block("python").replace("gold=lambda task: [task.spec", "gold=lambda task: ['x' + task.spec")
    (folder / "backwards_env.py").write_text(source.replace("backwards:", "backwards_env:"))
    return worst("environments", Subject(given=load_config(own_file(folder), [])))


def own_file(folder: Path) -> Path:
    (folder / "run.yaml").write_text("name: own\nstages: [init, rl]\nenvs: {own: {kind: backwards_env}}\n")
    return folder / "run.yaml"


@planted("environments", FAILURE, "has no verdict after 0.3 s", "raise rollout.limits.timeout_s")
def hanging_verifier(folder: Path) -> Finding:
    source = block("python").replace("return self.end(", "return __import__('time').sleep(60) or self.end(")
    (folder / "backwards_env.py").write_text(source.replace("backwards:", "backwards_env:"))
    return worst("environments", Subject(given=load_config(own_file(folder), ["rollout.limits.timeout_s=0.3"])))


@planted("environments", WARNING, "more than rollout.limits.turn_tokens=20", "rollout.limits.turn_tokens=")
def long_gold(folder: Path) -> Finding:
    return of_demo("environments", "rollout.limits.turn_tokens=20")


ALIKE = NodeFacts(
    versions={"Python": "3.11.7", "vllm": "0.11.1"}, code="4f2a", shm_bytes=8 * GIB, disk_bytes=90 * GIB, disk_share=0.5
)


def beside(node: NodeSeen) -> Finding:
    """What is found where this node is the second of a cluster."""
    (found,) = check_nodes([NodeSeen(address="10.0.0.1", facts=ALIKE), node])
    return found


@planted(
    "cluster", FAILURE, "10.0.0.2 has other versions than 10.0.0.1: vllm 0.10.0 in place of 0.11.1", "make setup there"
)
def node_of_other_versions(folder: Path) -> Finding:
    facts = replace(ALIKE, versions=ALIKE.versions | {"vllm": "0.10.0"})
    return beside(NodeSeen(address="10.0.0.2", facts=facts))


@planted("cluster", FAILURE, "10.0.0.2 has other code than 10.0.0.1: 77aa in place of 4f2a", "same commit")
def node_of_other_code(folder: Path) -> Finding:
    return beside(NodeSeen(address="10.0.0.2", facts=replace(ALIKE, code="77aa")))


@planted("cluster", WARNING, "the clock of 10.0.0.2 is 3.0 s behind this machine's, to 0.01 s", "time server")
def slow_clock(folder: Path) -> Finding:
    return beside(NodeSeen(address="10.0.0.2", facts=ALIKE, ahead_s=-3.0, within_s=0.01))


@planted("cluster", FAILURE, "10.0.0.2 can't connect to 10.0.0.1 (timed out)", "open the ports 20000 to 32767")
def closed_ports(folder: Path) -> Finding:
    return beside(NodeSeen(address="10.0.0.2", facts=ALIKE, unreached=("10.0.0.1 (timed out)",)))


@planted("cluster", WARNING, "/dev/shm of 10.0.0.2 has 64.0 MiB free", "--shm-size")
def little_shared_memory(folder: Path) -> Finding:
    return beside(NodeSeen(address="10.0.0.2", facts=replace(ALIKE, shm_bytes=64 * 2**20)))


@planted("cluster", WARNING, "10.0.0.2 has 3.0 GiB free, 3.0% of it", "--temp-dir")
def full_disk(folder: Path) -> Finding:
    return beside(NodeSeen(address="10.0.0.2", facts=replace(ALIKE, disk_bytes=3 * GIB, disk_share=0.03)))


@planted("cluster", FAILURE, "10.0.0.2: it said nothing within 120 s", "start Ray there")
def silent_node(folder: Path) -> Finding:
    return beside(NodeSeen(address="10.0.0.2", fault="it said nothing within 120 s"))


@planted("cluster", FAILURE, "RAY_ADDRESS=127.0.0.1:1: nobody answers there", "unset RAY_ADDRESS")
def no_cluster(folder: Path) -> Finding:
    return check_head("127.0.0.1:1") or ok("")


def test_clocks_whose_difference_the_answers_time_explains_are_not_apart() -> None:
    unsure = NodeSeen(address="10.0.0.2", facts=ALIKE, ahead_s=3.0, within_s=2.5)
    assert beside(unsure).level is Level.OK


def test_a_node_reaches_a_port_that_another_listens_on_and_says_why_it_does_not() -> None:
    assert reach("127.0.0.1", listen("127.0.0.1")) == ""
    assert "refused" in reach("127.0.0.1", free_port())


def test_the_checksum_of_a_checkout_tells_a_changed_line_and_leaves_tests_aside(tmp_path: Path) -> None:
    for name in ("learner", "tests", ".venv"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "one.py").write_text("a = 1\n")
    before = checksum(tmp_path)
    for name in ("tests", ".venv"):
        (tmp_path / name / "deep" / "one.py").write_text("a = 2\n")
    assert checksum(tmp_path) == before
    (tmp_path / "learner" / "deep" / "one.py").write_text("a = 2\n")
    assert checksum(tmp_path) != before


@pytest.mark.slow
def test_the_nodes_of_a_cluster_are_asked_for_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Nodes()
    try:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        nodes = ask_nodes()
        assert not ray.is_initialized()
        assert len(nodes) == 2
        for node in nodes:
            assert (node.fault, node.unreached) == ("", ())
            assert node.facts is not None
            assert node.facts.versions["ray"] == ray.__version__
            assert node.facts.code == checksum(ROOT)
            assert abs(node.ahead_s) <= node.within_s + 0.05  # both have this machine's clock
            assert node.within_s < 1
        found = worst("cluster", Subject())
        assert found.level is not FAILURE, found
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        assert worst("cluster", Subject()).level is Level.FAILURE
    finally:
        cluster.close()


@planted("tracking", WARNING, "does not answer", "tracking.uri")
def no_server(folder: Path) -> Finding:
    return check_store("http://user:password@127.0.0.1:9")


@planted("tracking", FAILURE, "WANDB_API_KEY, which is not set", "tracking.wandb.mode=offline")
def no_key(folder: Path) -> Finding:
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("WANDB_API_KEY", raising=False)
        return of_demo("tracking", "tracking.also=[wandb]", "tracking.wandb.mode=online")


@planted("tracking", WARNING, "can't be made", "runs_dir")
def no_store(folder: Path) -> Finding:
    return check_store("sqlite:////proc/none/mlflow.db")


@pytest.mark.parametrize("fault", FAULTS, ids=[one.found.__name__ for one in FAULTS])
def test_a_planted_fault_is_found_and_its_remedy_said(
    fault: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = fault.found(tmp_path)
    sys.modules.pop("backwards_env", None)
    assert (found.level, fault.text in found.what) == (fault.level, True), found
    assert fault.remedy in found.remedy, found
    assert found.remedy
    assert "password" not in found.what


def test_an_error_that_names_no_remedy_has_that_of_its_check() -> None:
    assert [of_error(ValueError(text), remedy="look").remedy for text in ("torn", "torn; sew it")] == ["look", "sew it"]
    foreign = of_error(KeyError("x; y"), remedy="look")
    assert (foreign.what, foreign.remedy) == ("KeyError: 'x; y'", "look")


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError("torn"), OSError(5, "no remedy"), EpisodeTimeout("late"), Panic("index 3")]
)
def test_whatever_a_check_raises_is_a_failure_with_a_remedy(error: BaseException) -> None:
    def raises(_: Subject) -> list[Finding]:
        raise error

    made = [replace(check, look=raises, after=()) for check in CHECKS]
    found = list(examined(made, Subject(given=demo())))
    assert [one.where for one in found] == [check.name for check in CHECKS]
    assert all(one.level is FAILURE and one.remedy for one in found)


def test_a_check_that_hangs_fails_by_its_remedy_and_the_others_are_made() -> None:
    woken = Event()

    def hangs(_: Subject) -> Iterator[Finding]:
        yield ok("begun")
        woken.wait(60)

    def ends(_: Subject) -> list[Finding]:
        sys.exit("the environment's own")

    given = {"hangs": hangs, "builds on it": hangs, "ends": ends, "goes": lambda _: [ok("went")]}
    made = [Check(name=name, look=look, remedy="wake it") for name, look in given.items()]
    made[0] = replace(made[0], limit_s=1.0)
    made[1] = replace(made[1], after=("hangs",))
    try:
        found = list(examined(made, Subject()))
    finally:
        woken.set()
    assert [(one.where, one.level) for one in found] == [
        ("hangs", Level.OK),
        ("hangs", FAILURE),
        ("ends", FAILURE),
        ("goes", Level.OK),
    ]
    assert found[1].line == "failure: hangs: nothing more after 1 s; wake it"


def test_every_check_has_a_planted_fault() -> None:
    assert {one.name for one in CHECKS} == {fault.check for fault in FAULTS}


def test_every_check_stands_in_the_table_and_those_that_begin_a_run_are_marked() -> None:
    text = (Path(__file__).parents[6] / "docs" / "operations.md").read_text()
    section = text.partition("## Before a run\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| ([a-z ]+?)( \*)? \|", section, re.MULTILINE)[1:]
    assert {name: bool(star) for name, star in named} == {one.name: one.quick for one in CHECKS}


def test_what_builds_on_a_model_that_is_not_whole_is_not_said_again(tmp_path: Path) -> None:
    model = tiny_models.qwen3(tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"torn")
    found = list(examine(read_subject(DEMO, ["name=examined", f"model.path={model}"])))
    assert [one.where for one in found if one.level is Level.FAILURE] == ["model"]
    assert {"thoughts", "tool calls", "environments"}.isdisjoint(one.where for one in found)


def test_gold_that_the_model_can_not_say_is_told_from_gold_that_is_wrong(tmp_path: Path) -> None:
    model = tiny_models.nemotron_h(tmp_path / "model")
    broken = (model / "chat_template.jinja").read_text().replace('"name"', '"nom"')
    assert broken != (model / "chat_template.jinja").read_text()
    (tmp_path / "chat.jinja").write_text(broken)
    said = [f"model.path={model}", f"model.chat_template={tmp_path}/chat.jinja", "sft.shares={}", "rl.shares={}"]
    found = list(examined([one for one in CHECKS if one.name == "environments"], Subject(given=demo(*said))))
    failed = [one for one in found if one.level is Level.FAILURE]
    assert len(failed) == 1
    assert failed[0].what.startswith("tool_use: 0 of 8 gold answers are right through the model's template")
    assert "model.tool_calls" in failed[0].remedy


def test_the_demo_is_sound_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    assert main(["doctor", str(DEMO), f"runs_dir={tmp_path}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["failures"] == 0
    assert {one["where"] for one in found["findings"]} >= {one.name for one in CHECKS} - {
        "cluster",
        "overlap",
        "rows",
        "prompts",
    }
    assert all(one["remedy"] for one in found["findings"] if one["level"] != "ok")
    assert list(tmp_path.iterdir()) == []
    assert not ray.is_initialized()


def test_without_a_configuration_the_machine_alone_is_examined_and_a_failure_is_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["doctor"])
    shown = capsys.readouterr().out
    assert "sandbox" in shown
    assert "environments" not in shown
    assert main(["doctor", str(Path(__file__).parents[6] / DEMO), "rl.step=7"]) == 1
    shown = capsys.readouterr().out
    assert "FAILURE configuration" in shown
    assert "-> did you mean 'steps'?" in shown
    assert "1 failures" not in shown
    assert main(["doctor", "none.yaml"]) == 2


def test_a_run_begins_with_what_the_quick_checks_find_amiss(tmp_path: Path) -> None:
    notes = start_notes(demo(f"runs_dir={tmp_path}", "sandbox.min_level=3", "rollout.workers=40"))
    assert any(note.startswith("warning: devices: ") and "lower learner.ranks" in note for note in notes)
    assert not any(note.startswith("ok") for note in notes)
    assert os.environ.get("RAY_ADDRESS") is None


def test_a_run_does_not_begin_with_faults_of_a_model_that_it_will_download(tmp_path: Path) -> None:
    notes = start_notes(demo(f"runs_dir={tmp_path}", "model.path=nobody/nothing", "rollout.workers=40"))
    assert any("lower learner.ranks" in note for note in notes)
    assert not any("hub" in note or "nobody/nothing" in note for note in notes), notes
