"""An agent of the package nemo-gym, in its own environment, plays scripted turns, and trains."""

import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from judges.packages import START_S, python_with, serving
from support.fault_job import runs
from support.json_lines import write_lines
from support.refusals import failure_kind
from support.scripted_endpoint import ScriptedEndpoint
from support.scripted_engine import TOKENIZER, ScriptedEngine

from temper.envs.agents import AgentEpisode
from temper.envs.catalog import configure_env
from temper.envs.core.errors import EnvironmentFault, FailureKind
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED, Thinking
from temper.envs.remote.gym_agent import agent_process, play
from temper.learner.batches.samples import samples_from_groups
from temper.orchestrator.cluster.this_machine import free_port
from temper.orchestrator.evaluation.record import read_run
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion

VERSION = "0.4.0"
SERVER = Path(__file__).parents[1] / "support" / "foreign" / "nemo_gym_server.py"
STEPS = ("example_multi_step", "ExampleMultiStepResourcesServer")
COUNTER = ("example_session_state_mgmt", "StatefulCounterResourcesServer")


def tool(name: str, argument: str, kind: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: kind}, "required": [argument]}
    return {"type": "function", "name": name, "description": "", "parameters": schema, "strict": True}


TOOLS = [
    tool("get_synonym_value", "synonym", {"type": "string"}),
    tool("extract_synonym_values", "synonym_values", {"type": "array", "items": {"type": "integer"}}),
]
ASKED = {"input": [{"role": "user", "content": "Blazing, Warm?"}], "tools": TOOLS, "parallel_tool_calls": False}
ROW = {
    "id": 1,
    "responses_create_params": ASKED,
    "expected_synonyms": ["Blazing", "Warm"],
    "expected_synonym_values": [711, 407],
    "minefield_label": "Hot",
    "minefield_label_value": 299,
}


OPTIMISER = {"kind": "muon", "muon_learning_rate": 0.012, "learning_rate": 2.0e-3, "warmup_steps": 5, "beta2": 0.98}
TRAINED: dict[str, Any] = {
    "seed": 1,
    "stages": ["init", "sft", "eval", "rl", "eval"],
    "sft": {"steps": 250, "batch_size": 16, "optim": OPTIMISER | {"schedule": "cosine"}},
    "rl": {
        "steps": 30,
        "groups_per_step": 8,
        "group_size": 8,
        "max_replaced_groups": 0,
        "optim": {"learning_rate": 2.0e-4, "warmup_steps": 2, "beta2": 0.99},
    },
    "eval": {"tasks": 24, "samples": 8},
    "rollout": {"limits": {"turn_tokens": 96, "total_tokens": 512}},
}


def call(name: str, **arguments: Any) -> str:
    """Return a call as the template writes it, so that the next request continues the turn."""
    return f'<tool_call>{{"name":"{name}","arguments":{json.dumps(arguments)}}}</tool_call>'


LOOKS = ["I look." + call("get_synonym_value", synonym=word) for word in ("Blazing", "Warm")]


def extracts(*values: int) -> str:
    return call("extract_synonym_values", synonym_values=list(values))


def counter_rows(python: str, rng: random.Random) -> list[dict[str, Any]]:
    """Rows of the package's counter: two numbers to add to a start that only its server knows."""
    find = f"import resources_servers.{COUNTER[0]} as found; print(found.__path__[0])"
    place = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
    example = json.loads((Path(place) / "data" / "example.jsonl").read_text(encoding="utf-8").splitlines()[0])
    rows = []
    for one, other in ((a, b) for a in range(1, 10) for b in range(1, 10)):
        asked = {"role": "user", "content": f"add {one} then add {other} then get the count"}
        params, start = example["responses_create_params"] | {"input": [asked]}, rng.randrange(10)
        rows.append({"responses_create_params": params, "initial_count": start, "expected_count": start + one + other})
    return rng.sample(rows, len(rows))


def counter_chat(row: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A chat in which 30 % of the numbers are wrong."""
    params = row["responses_create_params"]
    (asked,) = params["input"]
    numbers = [int(word) for word in asked["content"].split() if word.isdigit()]
    written = [rng.randint(1, 9) if rng.random() < 0.3 else number for number in numbers]
    count = rng.randrange(10) + sum(written)

    def calls(*made: tuple[str, dict[str, int]]) -> dict[str, Any]:
        functions = [{"type": "function", "function": {"name": name, "arguments": data}} for name, data in made]
        return {"role": "assistant", "content": "", "tool_calls": functions}

    messages = [
        asked,
        calls(*(("increment_counter", {"count": number}) for number in written)),
        *[{"role": "tool", "content": '{"success":true}'}] * 2,
        calls(("get_counter_value", {})),
        {"role": "tool", "content": f'{{"count":{count}}}'},
        {"role": "assistant", "content": str(count)},
    ]
    tools = [
        {"type": "function", "function": {k: one[k] for k in ("name", "description", "parameters")}}
        for one in params["tools"]
    ]
    return {"messages": messages, "tools": tools}


class Script(ScriptedEngine):
    """Writes the texts of an episode, and notes the tokens. It kills the agent during turn `kills_at`."""

    program: psutil.Process
    """The process of the agents, with a child for each episode."""

    def begin(self, texts: list[str], kills_at: int | None) -> None:
        self._texts, self._kills_at = [*texts], kills_at
        self.made: list[tuple[int, ...]] = []

    async def generate(self, request: TurnRequest) -> Completion:
        if self._kills_at == len(self.made):
            for agent in self.program.children():
                agent.kill()
        done = await super().generate(request)
        self.made.append(tuple(done.token_ids))
        return done


@contextmanager
def simple_agent(python: str, server: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Run a server of resources. Return the options of its agent."""
    (package, kind), port = server, free_port()
    url = f"http://127.0.0.1:{port}"
    with serving([python, SERVER, f"resources_servers.{package}.app", kind, str(port)], lambda: url):
        yield {"url": url, "agent": "simple_agent", "python": python}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The options of the agent, its task, and an endpoint on an engine."""

    options: dict[str, str]
    task: Task
    engine: Script
    endpoint: ScriptedEndpoint

    def play(
        self, texts: list[str], *, thinking: Thinking = OFF, kills_at: int | None = None, **settings: Any
    ) -> Trajectory:
        self.engine.begin(texts, kills_at)
        task = replace(self.task, key="row", thinking=thinking)
        env = configure_env("nemo_gym", self.options)
        return self.endpoint.play(task, env.agent, env=env, **settings)


@pytest.fixture(scope="module")
def python() -> str:
    return python_with(f"nemo-gym=={VERSION}", "3.12")


@pytest.fixture(scope="module")
def setup(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    engine = Script([])
    with (
        simple_agent(python, STEPS) as options,
        closing(ScriptedEndpoint(tmp_path_factory.mktemp("model"), TOKENIZER, engine)) as endpoint,
    ):
        task = configure_env("nemo_gym", options).formats[0].load(ROW)
        with closing(agent_process(task.spec["agent"])) as agent:
            (engine.program,) = psutil.Process(agent.process.pid).children()
            yield Setup(options=options, task=task, engine=engine, endpoint=endpoint)


@pytest.mark.judges(suite="NeMo-Gym agents", run="its `simple_agent`: calls of tools, rewards, a limit, a killed agent")
def test_an_agent_pays_what_its_server_verifies(setup: Setup, record_property: Any) -> None:
    right, wrong = [*LOOKS, extracts(711, 407), "Done."], [*LOOKS, extracts(711), "Done."]
    thoughtful = [f"I think.\n</think>\n{text}" for text in right]
    cases = ((right, OFF, 1.0), (wrong, OFF, 0.0), (["No."], OFF, 0.0), (thoughtful, UNLIMITED, 1.0))
    for texts, thinking, reward in cases:
        one = setup.play(texts, thinking=thinking)
        assert one.failure is None, one.failure
        assert (one.stop, one.reward) == (Stop.ENV, reward)
        assert [tuple(turn.sampled_ids) for turn in one.turns] == setup.engine.made
        assert len(one.turns) == len(texts)
        assert len(one.branches) == (1 if thinking is OFF else len(texts))  # its requests leave out earlier reasoning
        ticket = Ticket(number=1, task=one.task, admitted=WeightVersion(step=0))
        samples = samples_from_groups([Group(ticket=ticket, trajectories=(one,))], advantage="dr_grpo")
        assert sum(sample.trained_tokens for sample in samples) == sum(map(len, setup.engine.made))
        seen = TOKENIZER.decode([token for turn in one.turns for token in turn.context_ids])
        assert [f'"synonym_value":{value}' in seen for value in (711, 407)] == [len(texts) == 4] * 2
    record_property("version", VERSION)
    record_property("passed", len(cases))


@pytest.mark.judges
def test_a_limit_of_turns_truncates_it(setup: Setup) -> None:
    one = setup.play([*LOOKS, "Done."], max_turns=2)
    assert (one.failure, one.stop, len(one.turns), one.reward) == (None, Stop.TURNS, 2, 0.0)


@pytest.mark.judges
def test_an_agent_that_is_killed_during_a_call_is_a_failure(setup: Setup) -> None:
    one = setup.play([*LOOKS, "Done."], kills_at=1)
    assert failure_kind(one) is FailureKind.ENVIRONMENT
    assert one.stop is Stop.FAILURE


@pytest.mark.judges
def test_an_agent_ends_with_its_episode(setup: Setup) -> None:
    """NeMo-Gym would repeat its request to the lost model for ever."""
    program = setup.engine.program
    before, running = program.children(), list[psutil.Process]()
    episode = AgentEpisode(
        messages=[], tools=[], row=dict(setup.task.spec), url="http://127.0.0.1:9/v1", key="none", model="none"
    )

    def end() -> None:
        time.sleep(1)
        running.extend(one for one in program.children() if one not in before)
        episode.close()

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(EnvironmentFault):
        play(episode)
    ending.join()
    (agent,) = running
    agent.wait(START_S)


@pytest.mark.judges(
    suite="NeMo-Gym agents", run="its `simple_agent` trains on its counter: held-out reward, 30 steps of RL"
)
@pytest.mark.timeout(3600)
def test_a_model_learns_with_it(python: str, tmp_path: Path, record_property: Any) -> None:
    rng = random.Random(1)
    rows = counter_rows(python, rng)
    chats = [counter_chat(rng.choice(rows[24:]), rng) for _ in range(2000)]
    files = {"heldout": rows[:24], "rows": rows[24:], "chats": chats}
    heldout, trained, demonstrated = (
        str(write_lines(tmp_path / f"{name}.jsonl", lines)) for name, lines in files.items()
    )
    with simple_agent(python, COUNTER) as options, runs() as made:
        env = {"kind": "nemo_gym", "data": trained, "eval_data": heldout, "thinking": False, "options": options}
        own = {
            "envs": {"counter": env},
            "sft": TRAINED["sft"] | {"data": demonstrated},
        }
        made.config.write_text(yaml.safe_dump(TRAINED | own), encoding="utf-8")
        job = made.start("counter")
        assert job.end() == 0, job.output
        measured = read_run(job.run).final_metrics()
    before, after = (measured[stage]["counter/reward"] for stage in ("eval-sft", "eval-rl"))
    assert after > before + 0.1
    record_property("version", VERSION)
    record_property("passed", f"{before:.2f} to {after:.2f}")
