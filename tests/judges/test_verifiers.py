"""Task sets of the package verifiers, in its own environment, play episodes with a real engine."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from judges.packages import START_S, python_with, serving, wheels_of
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.containers import require_image
from unit.rollout.serving.test_agent_endpoint import CONFIG

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.workspace.container import find_runtime
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.episodes.worker import RolloutWorker
from temper.rollout.trajectory import Group, Ticket, Trajectory, WeightVersion
from temper.rollout.vllm_backend import make_agent_server, make_engine

VERSION, GYM = "0.4.0", "0.4.0"
FOREIGN = Path(__file__).parents[1] / "support" / "foreign"
SAMPLES = 4
MOVES = ("[", "abenort", "]")
"""The characters of a turn: one of each."""
WORDS = "abba\nbanana\nbetter\nnote\n"
LENGTH = 4096
REPLAY = """
import json, random, sys, textarena
random.seed(0)
game = textarena.make(env_id="Hangman-v0")
game.reset(num_players=1)
for move in json.loads(sys.argv[1]):
    game.step(move)
print(json.dumps([game.state.done, game.state.rewards]))
"""
"""Plays the first game again, and prints whether it is over, and its reward."""
HARBOR = "temper-judge"
"""The name of a task set of Harbor, of its task and of its image."""
HARNESS = ("openai", "mcp==2.0.0", "httpx", "httpx2", "tenacity", "certifi")
"""The packages that verifiers' harness `null` installs in a container."""
CONTAINERFILE = """
FROM {image}
COPY uv /usr/local/bin/uv
COPY wheels /wheels
ENV UV_DEFAULT_INDEX=file:///wheels UV_FIND_LINKS=/wheels
"""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The Python of an environment with verifiers, and a worker on a model that writes `MOVES`."""

    python: str
    runner: asyncio.Runner
    worker: RolloutWorker

    def play(self, options: dict[str, Any], *prompts: str) -> list[Group]:
        """Play the tasks with these words."""
        env = bind("set", EnvConfig(kind="verifiers", options={"python": self.python, **options}, thinking=False))
        assert env.definition.generate is not None
        made = [env.definition.generate(random.Random(number), 1) for number in range(100)]
        found = [next(one for one in made if words in one.messages[0]["content"]) for words in prompts]
        tickets = [
            Ticket(number=n, task=env.task(task, task.key), admitted=WeightVersion(step=0))
            for n, task in enumerate(found)
        ]

        async def groups() -> Sequence[Group]:
            return await asyncio.gather(*(self.worker.run_group(ticket, SAMPLES) for ticket in tickets))

        return list(self.runner.run(groups()))


def writes_moves(model: Path) -> Path:
    """Let the last token alone decide about the next: each of `MOVES` follows the one before, and then the turn ends."""
    tokenizer = byte_tokenizer()
    weights = load_file(model / "model.safetensors")
    weights |= {name: torch.zeros_like(each) for name, each in weights.items() if name.endswith("_proj.weight")}
    embedded, head = torch.zeros(2, *weights["lm_head.weight"].shape)
    embedded[:, 0] = 1.0
    for place, characters in enumerate((*MOVES, None)):
        for each in tokenizer(characters)["input_ids"] if characters else [tokenizer.eos_token_id]:
            embedded[each] = torch.eye(len(embedded[each]))[place + 1]
            head[each, place] = 3000.0
    named = {"model.embed_tokens.weight": embedded.contiguous(), "lm_head.weight": head.contiguous()}
    save_file(weights | named, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LENGTH}))
    return model


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    python = python_with(f"verifiers[harbor,openenv,ta]=={VERSION}", "3.12")
    limits = replace(CONFIG.limits, timeout_s=300.0, total_tokens=LENGTH)
    config = replace(CONFIG, engine=replace(CONFIG.engine, max_model_len=LENGTH), limits=limits)
    worker = RolloutWorker(config, seed=1, make_engine=make_engine, make_agent_server=make_agent_server)
    with asyncio.Runner() as runner:
        runner.run(worker.start(str(writes_moves(tiny_models.qwen3(tmp_path_factory.mktemp("moves") / "model"))), 0))
        yield Setup(python=python, runner=runner, worker=worker)
        runner.run(worker.close())


def answers(one: Trajectory) -> list[str]:
    return [turn.answer for turn in one.turns]


def all_played(group: Group) -> Sequence[Trajectory]:
    assert not group.failed, [one.failure for one in group.failed]
    assert len(group.trajectories) == SAMPLES
    return group.trajectories


@pytest.mark.judges(suite="verifiers", run="a task set over the endpoint, a reward that raises")
def test_a_task_set_scores_what_the_engine_sampled(setup: Setup, record_property: Any) -> None:
    *scored, broken = setup.play({"taskset": "letters_v1", "folder": str(FOREIGN)}, "Write a.", "Write b.", "Write c.")
    for group, letter in zip(scored, "ab", strict=True):
        for one in all_played(group):
            (answer,) = answers(one)
            assert one.score.parts["share"] == pytest.approx(2 * answer.count(letter) / len(answer))
            assert one.reward == one.score.parts["share"]
    assert not broken.trajectories
    assert all(one.failure is not None and "no c here" in one.failure.message for one in broken.failed)
    record_property("version", VERSION)
    record_property("passed", 3 * SAMPLES)


@pytest.mark.judges(
    suite="verifiers", run="its `textarena`: Hangman, against the game played again with the same moves"
)
def test_a_game_pays_as_it_does_without_verifiers(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    words = tmp_path / "corpora" / "words"
    words.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (words / name).write_text(WORDS)
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    options = {"taskset": {"id": "textarena", "game": "Hangman-v0"}, "max_tasks": 1, "variables": ["NLTK_DATA"]}
    (group,) = setup.play(options, "Hangman")
    for one in all_played(group):
        again = [setup.python, "-W", "ignore", "-c", REPLAY, json.dumps(answers(one))]
        over, rewards = json.loads(subprocess.check_output(again, text=True, timeout=START_S).splitlines()[-1])
        assert over
        assert one.reward == pytest.approx(rewards["0"])
    record_property("version", VERSION)
    record_property("passed", SAMPLES)


@pytest.mark.judges(suite="verifiers", run="its `openenv`: an echo server's rewards, one that is gone")
def test_a_server_of_openenv_pays_for_each_character(setup: Setup, record_property: Any) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = {"taskset": {"id": "openenv", "base_url": url, "resets": [{"seed": 7, "turns": 2}]}}
    with serving([setup.python, FOREIGN / "openenv_echo.py", str(port)], lambda: f"{url}/health"):
        (group,) = setup.play(options, "")
    for one in all_played(group):
        assert len(answers(one)) == 2
        assert one.reward == pytest.approx(sum(map(len, answers(one))) / 10)
    (group,) = setup.play(options, "")
    assert not group.trajectories
    assert all(one.failure is not None and "connect" in one.failure.message for one in group.failed)
    record_property("version", VERSION)
    record_property("passed", 2 * SAMPLES)


@pytest.mark.judges(suite="verifiers", run=f"its `nemo_gym`: multiple choice, verified by a server of nemo-gym {GYM}")
def test_a_server_of_nemo_gym_verifies_answers(setup: Setup, tmp_path: Path, record_property: Any) -> None:
    gym, rows, port = python_with(f"nemo-gym=={GYM}", "3.12"), tmp_path / "rows.jsonl", tmp_path / "nemo_gym.port"
    asked = {"responses_create_params": {"input": [{"role": "user", "content": "a or b?"}]}}
    choice = {"options": [{"A": "a"}, {"B": "b"}], "expected_answer": "A"}
    form = {"template_metadata": {"output_regex": r"\[(\w)\]"}}
    rows.write_text(json.dumps(asked | choice | form))
    (server,) = Path(setup.python).parents[1].glob("lib/*/site-packages/verifiers/v1/tasksets/nemo_gym/server.py")
    variables = os.environ | {"NEMO_GYM_RESOURCE_SERVER": "resources_servers.mcqa.app:MCQAResourcesServer"}

    def url() -> str:
        return f"http://127.0.0.1:{port.read_text()}"

    with serving([gym, server], url, cwd=tmp_path, env=variables):
        taskset = {"id": "nemo_gym", "dataset": str(rows), "task": {"resources_url": url()}}
        (group,) = setup.play({"taskset": taskset}, "a or b?")
    for one in all_played(group):
        assert one.reward == float(answers(one) == ["[a]"])
    record_property("version", VERSION)
    record_property("passed", SAMPLES)


def build_image(folder: Path) -> str:
    """Add uv and the packages of the harness to the image for tests. Return the runtime that has the new image."""
    image = require_image()
    runtime, show = find_runtime(image), "import sys; print('%d.%d' % sys.version_info[:2])"
    command = [runtime, "run", "--rm", "--network=none", "--entrypoint=python3", image, "-c", show]
    python = subprocess.check_output(command, text=True, timeout=START_S).strip()
    shutil.copytree(wheels_of(*HARNESS, python=python), folder / "wheels")
    shutil.copy(Path(sys.executable).with_name("uv"), folder / "uv")
    (folder / "Containerfile").write_text(CONTAINERFILE.format(image=image))
    build = [
        runtime,
        "build",
        "--quiet",
        f"--file={folder / 'Containerfile'}",
        f"--tag=localhost/{HARBOR}",
        str(folder),
    ]
    subprocess.run(build, check=True, timeout=START_S)
    return runtime


def write_harbor_task(folder: Path) -> Path:
    """Make a git repository of a task whose reward counts the episodes of its container. Return its registry."""
    task = folder / "repository" / HARBOR
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text(f'version = "1.0"\n[environment]\ndocker_image = "localhost/{HARBOR}"\n')
    (task / "instruction.md").write_text("Write a b.")
    reward = "0.$(wc -l < /logs/episodes)"
    (task / "tests" / "test.sh").write_text(f"echo >> /logs/episodes\necho {reward} > /logs/verifier/reward.txt\n")
    git = ["git", "-C", str(task.parent), "-c", "user.name=judge", "-c", "user.email=judge@localhost"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "task"]):
        subprocess.run([*git, *command], check=True, timeout=START_S)
    source = {"name": HARBOR, "git_url": task.parent.as_uri(), "path": HARBOR}
    listed = {"name": HARBOR, "version": "1.0", "description": "", "tasks": [source]}
    (registry := folder / "registry.json").write_text(json.dumps([listed]))
    return registry


@pytest.mark.judges(suite="verifiers", run="its `harbor`: a task in containers, whose script writes the reward")
def test_a_task_of_harbor_is_scored_in_its_own_container(setup: Setup, tmp_path: Path, record_property: Any) -> None:
    (context := tmp_path / "context").mkdir()
    runtime, registry = build_image(context), write_harbor_task(tmp_path)
    taskset = {"id": "harbor", "dataset": HARBOR, "registry_path": str(registry)}
    try:
        (group,) = setup.play({"taskset": taskset, "env": {"agent": {"runtime": {"type": runtime}}}}, "Write a b.")
    finally:
        for copy in (Path.home() / ".cache" / "harbor").glob(f"{HARBOR}_*"):
            shutil.rmtree(copy)
        # fails if a container is left
        subprocess.run([runtime, "rmi", f"localhost/{HARBOR}"], check=True, timeout=START_S)
    assert [one.reward for one in all_played(group)] == [0.1] * SAMPLES
    assert all(len(answers(one)) == 1 for one in group.trajectories)
    record_property("version", VERSION)
    record_property("passed", SAMPLES)


@pytest.mark.judges
def test_a_task_set_that_does_not_exist_is_a_mistake_in_the_settings(setup: Setup) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        setup.play({"taskset": "nowhere"}, "")
