"""`doctor`: each check finds its planted fault and gives a remedy. A sound configuration has no finding."""

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from support import tiny_models
from support.documents import tutorial_block as block
from support.plans import known
from support.two_nodes import Nodes
from transformers import AutoTokenizer

from temper.envs.core.errors import EpisodeTimeout
from temper.envs.sandbox.seal_probe import KERNEL
from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import byte_tokenizer, hybrid_config
from temper.orchestrator.__main__ import main
from temper.orchestrator.cluster.machines import Hardware, Machine
from temper.orchestrator.cluster.node_facts import NodeFacts, NodeReport, checksum, listen, query_nodes, reach
from temper.orchestrator.cluster.placement import PlacementRequest
from temper.orchestrator.cluster.ray_cluster import ray
from temper.orchestrator.cluster.this_machine import PACKAGE, free_port
from temper.orchestrator.pipeline.config import Config, load_config
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import Site
from temper.orchestrator.pipeline.estimate.limits import push_limits
from temper.orchestrator.pipeline.estimate.model import planned_model
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.pipeline.finding import Finding, Level, ok
from temper.orchestrator.tools.preflight.doctor import gpus, machine, memory, nodes, store
from temper.orchestrator.tools.preflight.doctor.check import Check, run_check
from temper.orchestrator.tools.preflight.doctor.checks import CHECKS, examine, start_notes
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget, read_target

DEMO = Path("configs/demo.yaml")
GIB = 2**30
SMALL = Machine(gpus=1, gpu_gib=24.0, memory_gib=64.0, cpus=8)
FEW_CORES = replace(SMALL, gpus=0, cpus=2)
ROW = '{{"question": "What is {} + 1?", "answer": "#### {}"}}\n'
FAILURE, WARNING = Level.FAILURE, Level.WARNING
Plant = Callable[[Path], Finding]


def demo(*overrides: str) -> Config:
    return load_config(DEMO, ["name=examined", *overrides])


def worst(check: str, target: CheckTarget) -> Finding:
    found = list(run_check([one for one in CHECKS if one.name == check], target))
    assert found, f"{check} says nothing"
    return max(found, key=lambda one: list(Level).index(one.level))


def of_demo(check: str, *overrides: str) -> Finding:
    return worst(check, CheckTarget(requested=demo(*overrides)))


def rows(folder: Path, *lines: str, name: str = "rows.jsonl") -> Path:
    made = [ROW.format(number, number + 1) for number in range(64)]
    (folder / name).write_text("".join([*made, *lines]))
    return folder / name


LOCK = "# made\nTorch==2.13.0+cpu\n    # via x\nnumpy==2.4.1\nray==2.0 ; x\nrich==1.0\n"
INSTALLED = {"torch": "2.13.0+cu130", "numpy": "2.4.1+local", "ray": "2.0", "more": "1"}


def with_packages(found: dict[str, str]) -> Plant:
    def plant(folder: Path) -> Finding:
        (folder / "lock.txt").write_text(LOCK)
        return next(machine.check_versions(machine.read_lock(folder / "lock.txt"), found, name="lock.txt"))

    return plant


def gpu_in_use(folder: Path) -> Finding:
    told = gpus.read_driver("580.65.06, 4\n580.65.06, 70112\n580.65.06, [N/A]\n")
    assert list(gpus.gpus_in_use(told, "0,2")) == []  # as its remedy advises
    assert len(list(gpus.gpus_in_use(told, "1"))) == 1
    (found,) = gpus.gpus_in_use(told, None)
    return found


def ports_taken(folder: Path) -> Finding:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        return machine.check_ports(range(port, port + 1))


def torn_model(folder: Path) -> Finding:
    model = tiny_models.qwen3(folder / "model")
    (model / "model.safetensors").write_bytes(b"torn")
    return worst("model", read_target(DEMO, [f"model.path={model}"]))


def with_tied(make: Callable[[Path], Path], *, tied: bool) -> Plant:
    """Plant a model whose configuration declares tied or untied embeddings."""

    def plant(folder: Path) -> Finding:
        config = make(folder / "model") / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": tied}))
        return of_demo("output layer", f"model.path={config.parent}")

    return plant


def no_kernels(folder: Path) -> Finding:
    config = hybrid_config(FreshModelConfig(), byte_tokenizer())

    def inspect(_: CheckTarget) -> list[Finding]:
        gpus.check_kernels(config, device="cuda")
        return [ok("")]

    return next(run_check([Check("", inspect, "none")], CheckTarget()))


def demo_on(has: Machine, *, shm: int = GIB) -> Plan:
    config = demo()
    site = Site(hardware=Hardware(machines=(has,)), card=None, shm_bytes=shm)
    return Plan(config, planned_model(config.model, config.learner), site, Assumptions())


def nearly_large_enough_gpus(folder: Path) -> Finding:
    gib = known(demo_on(replace(SMALL, gpus=2)).rank).peak / GIB
    failed, warned = (
        next(memory.check_memory(demo_on(replace(SMALL, gpus=2, gpu_gib=gib / over)))) for over in (1.17, 1.13)
    )
    assert failed.level is FAILURE
    return warned


def little_room(folder: Path) -> Finding:
    return memory.check_disk_space(folder, free=10**9, size=4 * 10**8, keep=1, there=[0, 0])


def large_push(folder: Path) -> Finding:
    (limit,) = push_limits(demo_on(replace(SMALL, gpus=0, memory_gib=0.001), shm=2**20))
    return memory.check_limit(limit)


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}assistant: "


def with_template(check: str, text: str, *overrides: str) -> Plant:
    def plant(folder: Path) -> Finding:
        (folder / "chat.jinja").write_text(text)
        model = tiny_models.nemotron_h(folder / "model")
        return of_demo(check, f"model.path={model}", f"model.chat_template={folder}/chat.jinja", *overrides)

    return plant


NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + str(
    byte_tokenizer().chat_template
)
SYSTEM_ROW = {"messages": [{"role": role, "content": "1"} for role in ("system", "user", "assistant")]}


def with_refused_system(check: str, *overrides: str) -> Plant:
    """Plant system texts for a template that refuses them: in the prompts of RL, and in the file chats.jsonl."""

    def plant(folder: Path) -> Finding:
        data = rows(folder)
        (folder / "chats.jsonl").write_text(json.dumps(SYSTEM_ROW) + "\n")
        math = f"envs.math={{data: {data}, options: {{system: Be brief.}}}}"
        return with_template(check, NO_SYSTEM, math, *(one.format(folder=folder) for one in overrides))(folder)

    return plant


def small_embedding(folder: Path) -> Finding:
    model = tiny_models.nemotron_h(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens([f"<x{number}>" for number in range(300)])
    tokenizer.save_pretrained(model)
    return of_demo("tokenizer", f"model.path={model}")


def of_environment(old: str, new: str, *overrides: str) -> Plant:
    """Plant the tutorial's environment with one change."""

    def plant(folder: Path) -> Finding:
        source = block("python")
        assert old in source
        (folder / "backwards_env.py").write_text(source.replace(old, new).replace("backwards:", "backwards_env:"))
        (folder / "run.yaml").write_text("name: own\nstages: [init, rl]\nenvs: {own: {kind: backwards_env}}\n")
        return worst("environments", CheckTarget(requested=load_config(folder / "run.yaml", list(overrides))))

    return plant


def evaluation_that_is_trained_on(folder: Path) -> Finding:
    test = rows(folder, name="test.jsonl")
    return of_demo("overlap", f"envs.math.data={rows(folder)}", f"envs.math.eval_data={test}")


ALIKE = NodeFacts(
    versions={"Python": "3.11.7", "vllm": "0.11.1"}, code="4f2a", shm_bytes=8 * GIB, disk_bytes=90 * GIB, disk_share=0.5
)


def beside(node: NodeReport) -> Finding:
    """Return the finding of a cluster with this second node."""
    (found,) = nodes.check_nodes([NodeReport(address="10.0.0.1", facts=ALIKE), node])
    return found


def node(**facts: object) -> Plant:
    """Plant a second node with other facts."""
    return lambda _: beside(NodeReport(address="10.0.0.2", facts=replace(ALIKE, **facts)))  # type: ignore[arg-type]


def seen(**given: object) -> Plant:
    """Plant a second node with another report."""
    return lambda _: beside(NodeReport(address="10.0.0.2", **({"facts": ALIKE} | given)))  # type: ignore[arg-type]


def no_key(folder: Path) -> Finding:
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("WANDB_API_KEY", raising=False)
        return of_demo("tracking", "tracking.also=[wandb]", "tracking.wandb.mode=online")


def lost_head(folder: Path) -> Finding:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_ADDRESS", "127.0.0.1:1")
        return worst("cluster", CheckTarget())


def driver(version: str | None, *, cuda: str | None = "13.0", found: int = 0) -> Plant:
    return lambda _: gpus.check_driver(version, cuda=cuda, gpus=found)


def low_sandbox(*, programs: bool) -> Plant:
    return lambda _: machine.check_isolation(machine.try_sandbox(max_level=2), least=3, programs=programs)


def devices(has: Machine, wanted: PlacementRequest) -> Plant:
    return lambda _: gpus.check_devices(wanted, Hardware(machines=(has,)))


def memory_finding(at: int, has: Machine) -> Plant:
    """Plant a machine of this size for the limit number `at`."""
    return lambda _: list(memory.check_memory(demo_on(has)))[at]


def tracked(uri: str) -> Plant:
    return lambda _: store.check_store(uri)


def given(check: str, *overrides: str) -> Plant:
    """Plant settings over the demo's settings, read as the command does."""
    return lambda _: worst(check, read_target(DEMO, ["name=examined", *overrides]))


def with_rows(check: str, *overrides: str, row: str = "") -> Plant:
    return lambda folder: of_demo(check, f"envs.math.data={rows(folder, row)}", *overrides)


NO_TURNS = PLAIN.replace("<|im_end|>", "").replace("m.role", "1")
REFERENCE, WRONG_REFERENCE = "reference=lambda task: [task.spec", "reference=lambda task: ['x' + task.spec"
VERDICT, HANGS = "return self.end(", "return __import__('time').sleep(60) or self.end("
SHORT = ("rollout.limits.total_tokens=20", "rollout.limits.turn_tokens=20")
WEIGHED = ("envs.math.reward=support.user_functions.parts", "sft.shares.math=0")
HUGE = [f"model.fresh.{one}" for one in ("hidden_size=65536", "intermediate_size=1048576", "pattern=----")]
FAULTS: dict[str, list[tuple[Level, str, str, Plant]]] = {
    "configuration": [(FAILURE, "'step'", "rl.steps", given("configuration", "rl.step=7"))],
    "versions": [
        (FAILURE, "1 of 4 packages of lock.txt are missing: rich", "make setup", with_packages(INSTALLED)),
        (WARNING, "torch 2.13.0+cu130", "make setup", with_packages(INSTALLED | {"rich": "1.0"})),
    ],
    "driver": [
        (FAILURE, "570.86 is older than 580", "580 or later", driver("570.86", found=1)),
        (FAILURE, "no driver", "STACK=cpu", driver(None)),
        (FAILURE, "no GPU", "CUDA_VISIBLE_DEVICES", driver("580.1")),
        (WARNING, "580.1", "STACK=gpu", driver("580.1", cuda=None)),
        (WARNING, "GPU 1 has 70112 MiB", "CUDA_VISIBLE_DEVICES", gpu_in_use),
    ],
    "open files": [(WARNING, "1024", "ulimit -n", lambda _: machine.check_open_files(1024))],
    "ports": [(FAILURE, "no 16 free ports", "end", ports_taken)],
    "sandbox": [
        (FAILURE, "min_level=3: NOT STOPPED: find_files", KERNEL, low_sandbox(programs=True)),
        (WARNING, "min_level=3", KERNEL, low_sandbox(programs=False)),
    ],
    "model": [
        (FAILURE, "safetensors", "download it again", torn_model),
        (WARNING, "nobody/nothing", "hf download nobody/nothing", given("model", "model.path=nobody/nothing")),
    ],
    "output layer": [
        (FAILURE, "no lm_head.weight", "config.json to true", with_tied(tiny_models.qwen3_tied, tied=False)),
        (WARNING, "lm_head.weight", "config.json to false", with_tied(tiny_models.qwen3, tied=True)),
    ],
    "kernels": [(FAILURE, "mamba", "STACK=cpu", no_kernels)],
    "devices": [
        (FAILURE, "4 GPUs", "rollout.workers", devices(SMALL, PlacementRequest(ranks=1, engines=3))),
        (WARNING, "8 processes", "learner.ranks", devices(FEW_CORES, PlacementRequest(ranks=4, engines=4))),
    ],
    "memory": [
        (FAILURE, "main memory of a machine", "2 GiB", memory_finding(-1, replace(SMALL, gpus=0, memory_gib=0.5))),
        (FAILURE, "a rank's memory", "GPUs of 4 GiB", memory_finding(0, replace(SMALL, gpus=2, gpu_gib=2.5))),
        (WARNING, "less than 15%", "GPUs of 4 GiB", nearly_large_enough_gpus),
        (WARNING, "2.0 GiB", "end", lambda _: memory.check_available(2 * GIB, GIB)),
    ],
    "push": [
        (WARNING, "64.0 MiB", "--shm-size", lambda _: memory.check_shm(2**26)),
        (FAILURE, "main memory", "learner.wire_dtype=bfloat16", large_push),
    ],
    "disk": [
        (FAILURE, "bytes free and a checkpoint of", "runs_dir=", given("disk", *HUGE)),
        (WARNING, "3 checkpoints of 0.4 GB take 1.2", "checkpoints.keep", little_room),
    ],
    "thinking": [
        (FAILURE, "thinking", "", with_template("thinking", PLAIN, "rl.thinking={budget: 0.5, budgets: [16]}"))
    ],
    "end of turn": [(FAILURE, "turn", "model.end_of_turn", with_template("end of turn", NO_TURNS))],
    "tokenizer": [(FAILURE, "'<x", "resize_token_embeddings", small_embedding)],
    "chat template": [
        (FAILURE, "tools", "model.tool_calls", with_template("chat template", PLAIN)),
        (FAILURE, "System role not supported", "first user message", with_refused_system("chat template")),
    ],
    "rows": [
        (FAILURE, "rows.jsonl:65", "fix the row", with_rows("rows", row="no JSON")),
        (WARNING, "1 unusable", "math.on_error=raise", with_rows("rows", "envs.math.on_error=skip", row="no JSON")),
        (WARNING, "nobody/nothing", "--repo-type dataset", given("rows", "envs.math.data=nobody/nothing")),
    ],
    "rewards": [
        (FAILURE, "rigth", "right", given("rewards", *WEIGHED, "envs.math.weights.rigth=1")),
        (WARNING, "one answer to all tasks", "different answers", given("rewards", "envs.multiple_choice={}")),
    ],
    "stages": [
        (FAILURE, "'math'", "", with_rows("stages")),
        (FAILURE, "System role", "first user message", with_refused_system("stages", "sft.data={folder}/chats.jsonl")),
    ],
    "prompts": [(FAILURE, "64 of 64 rows", "raise the limit", with_rows("prompts", *SHORT))],
    "overlap": [(WARNING, "64 of 64 prompts", "math.drop_overlap=exact", evaluation_that_is_trained_on)],
    "limits": [(WARNING, "tool_use", "remove the smaller setting", given("limits", "rollout.limits.turns=2"))],
    "environments": [
        (FAILURE, "none for an answer", "rollout.limits.total_tokens", given("environments", *SHORT)),
        (FAILURE, "own: 0 of 8", "temper env check --env backwards", of_environment(REFERENCE, WRONG_REFERENCE)),
        (FAILURE, "0.3 s", "timeout_s", of_environment(VERDICT, HANGS, "rollout.limits.timeout_s=0.3")),
        (WARNING, "turn_tokens=20", "turn_tokens=", given("environments", "rollout.limits.turn_tokens=20")),
    ],
    "cluster": [
        (FAILURE, "vllm 0.10.0", "make setup", node(versions=ALIKE.versions | {"vllm": "0.10.0"})),
        (FAILURE, "77aa", "same commit", node(code="77aa")),
        (FAILURE, "10.0.0.2 can't connect to 10.0.0.1", "20000 to 32767", seen(unreached=("10.0.0.1 (timed out)",))),
        (WARNING, "/dev/shm of 10.0.0.2 has 64.0 MiB", "--shm-size", node(shm_bytes=64 * 2**20)),
        (WARNING, "10.0.0.2 has 3.0 GiB free, 3.0%", "--temp-dir", node(disk_bytes=3 * GIB, disk_share=0.03)),
        (FAILURE, "10.0.0.2: silent", "start Ray", seen(facts=None, fault="silent")),
        (FAILURE, "RAY_ADDRESS=127.0.0.1:1", "unset RAY_ADDRESS", lost_head),
    ],
    "tracking": [
        (WARNING, "127.0.0.1:9", "tracking.uri", tracked("http://user:password@127.0.0.1:9")),
        (FAILURE, "WANDB_API_KEY", "tracking.wandb.mode=offline", no_key),
        (WARNING, "/proc/none", "runs_dir", tracked("sqlite:////proc/none/mlflow.db")),
    ],
}
"""By check: level, part of the finding, part of its remedy, and the function that plants the fault in a folder."""


@pytest.mark.parametrize(
    ("level", "text", "remedy", "plant"),
    [pytest.param(*fault, id=f"{check}: {fault[1]}") for check, faults in FAULTS.items() for fault in faults],
)
def test_a_planted_fault_is_found_and_its_remedy_said(
    level: Level, text: str, remedy: str, plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = plant(tmp_path)
    sys.modules.pop("backwards_env", None)
    assert (found.level, text in found.what) == (level, True), found
    assert found.remedy, found
    assert remedy in found.remedy, found
    assert "password" not in found.what


def test_every_check_has_a_planted_fault() -> None:
    assert {one.name for one in CHECKS} == FAULTS.keys()


def test_checkpoints_that_are_there_already_need_no_room(tmp_path: Path) -> None:
    config = demo(f"runs_dir={tmp_path}")
    size = CheckTarget(requested=config).plan.model.checkpoint_bytes
    before = of_demo("disk", f"runs_dir={tmp_path}")
    assert f"5 checkpoints of {size / 1e9:.3g} GB take {5 * size / 1e9:.3g}" in before.what
    for stage, steps in (("init", 9), ("sft", 2), ("rl", 3)):  # one more than is kept: the best
        for step in range(steps):
            folder = tmp_path / "examined" / "checkpoints" / stage / f"{step:06d}"
            folder.mkdir(parents=True)
            with (folder / "model.safetensors").open("wb") as file:
                file.truncate(size)
    assert f"take {size / 1e9:.3g} more" in of_demo("disk", f"runs_dir={tmp_path}").what
    assert "GB take" not in of_demo("disk", "stages=[init,eval]").what


def test_a_run_that_joins_a_cluster_has_other_hardware_than_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for check in ("driver", "devices", "memory", "push"):
        assert "RAY_ADDRESS" in of_demo(check, "rollout.workers=40").what


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
        there = query_nodes()
        assert not ray.is_initialized()
        assert len(there) == 2
        for node in there:
            assert (node.fault, node.unreached) == ("", ())
            assert node.facts is not None
            assert node.facts.versions["ray"] == ray.__version__
            assert node.facts.code == checksum(PACKAGE)
        found = worst("cluster", CheckTarget())
        assert found.level is not FAILURE, found
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        assert worst("cluster", CheckTarget()).level is Level.FAILURE
    finally:
        cluster.close()


class Panic(BaseException):
    """A panic as Rust libraries raise it."""


def test_an_error_of_a_check_is_a_failure_with_its_own_remedy_or_the_checks() -> None:
    errors = {
        ValueError("torn"): ("torn", "look"),
        ValueError("torn; sew it"): ("torn", "sew it"),
        KeyError("x; y"): ("KeyError: 'x; y'", "look"),
        OSError(5, "no remedy"): ("[Errno 5] no remedy", "look"),
        EpisodeTimeout("late"): ("late", "look"),
        Panic("index 3"): ("Panic: index 3", "look"),
    }

    def raises(error: BaseException) -> Callable[[CheckTarget], list[Finding]]:
        def inspect(_: CheckTarget) -> list[Finding]:
            raise error

        return inspect

    found = list(run_check([Check("", raises(error), "look") for error in errors], CheckTarget()))
    assert [(one.level, one.what, one.remedy) for one in found] == [(FAILURE, *told) for told in errors.values()]
    assert all(check.remedy for check in CHECKS)


def test_a_check_that_hangs_fails_by_its_remedy_and_the_others_are_made() -> None:
    woken = Event()

    def hangs(_: CheckTarget) -> Iterator[Finding]:
        yield ok("begun")
        woken.wait(60)

    def ends(_: CheckTarget) -> list[Finding]:
        sys.exit("the environment's own")

    given = {"hangs": hangs, "builds on it": hangs, "ends": ends, "goes": lambda _: [ok("went")]}
    made = [Check(name, inspect, "wake it") for name, inspect in given.items()]
    made[0] = replace(made[0], limit_s=1.0)
    made[1] = replace(made[1], after=("hangs",))
    try:
        found = list(run_check(made, CheckTarget()))
    finally:
        woken.set()
    assert [(one.where, one.level) for one in found] == [
        ("hangs", Level.OK),
        ("hangs", FAILURE),
        ("ends", FAILURE),
        ("goes", Level.OK),
    ]
    assert found[1].line == "failure: hangs: nothing more after 1 s; wake it"


def test_what_builds_on_a_model_that_is_not_whole_is_not_said_again(tmp_path: Path) -> None:
    model = tiny_models.qwen3(tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"torn")
    found = list(examine(read_target(DEMO, ["name=examined", f"model.path={model}"])))
    assert [one.where for one in found if one.level is Level.FAILURE] == ["model"]
    assert {"thinking", "chat template", "environments"}.isdisjoint(one.where for one in found)


def test_reference_that_the_model_can_not_say_is_told_from_reference_that_is_wrong(tmp_path: Path) -> None:
    model = tiny_models.nemotron_h(tmp_path / "model")
    broken = (model / "chat_template.jinja").read_text().replace('"name"', '"nom"')
    assert broken != (model / "chat_template.jinja").read_text()
    (tmp_path / "chat.jinja").write_text(broken)
    said = [f"model.path={model}", f"model.chat_template={tmp_path}/chat.jinja", "sft.shares={}", "rl.shares={}"]
    found = list(run_check([one for one in CHECKS if one.name == "environments"], CheckTarget(requested=demo(*said))))
    failed = [one for one in found if one.level is Level.FAILURE]
    assert len(failed) == 1
    assert failed[0].what.startswith("tool_use: 0 of 8 reference answers are correct through the model's template")
    assert "model.tool_calls" in failed[0].remedy


def test_a_reward_of_the_user_may_differ_from_the_reference() -> None:
    found = of_demo("environments", "envs.math.reward=support.user_functions.length", "envs.code.share=0")
    assert found.level is WARNING
    assert "support.user_functions.length" in found.what


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
    assert "-> did you mean rl.steps?" in shown
    assert "1 failures" not in shown
    assert main(["doctor", "none.yaml"]) == 2


def test_a_run_begins_with_the_faults_that_quick_checks_find_but_not_of_a_model_to_download(tmp_path: Path) -> None:
    given = (f"runs_dir={tmp_path}", "sandbox.min_level=3", "rollout.workers=40")
    for model in ((), ("model.path=nobody/nothing",)):
        notes = start_notes(demo(*given, *model))
        assert any(note.startswith("warning: devices: ") and "lower learner.ranks" in note for note in notes)
        assert not any(note.startswith("ok") or "hub" in note or "nobody/nothing" in note for note in notes), notes
    assert os.environ.get("RAY_ADDRESS") is None
