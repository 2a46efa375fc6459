"""An agent of the package nemo-gym, in its own environment, plays scripted turns by the program of the guide."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from judges.packages import START_S, python_with, serving
from support.documents import blocks
from support.scripted_endpoint import ScriptedEndpoint
from support.scripted_engine import TOKENIZER, ScriptedEngine

from temper.envs.catalog import configure_env
from temper.envs.core.errors import FailureKind
from temper.envs.core.thinking_mode import OFF, UNLIMITED, Thinking
from temper.envs.remote.responses_api import load
from temper.learner.batches.samples import samples_from_groups
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion

VERSION = "0.4.0"
SERVER = Path(__file__).parents[1] / "support" / "foreign" / "nemo_gym_server.py"
MODULE = "resources_servers.example_multi_step.app"
PROGRAM, GUIDES_PORT = "gym_agent.py", "8001"
NOWHERE = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "none", "MODEL": "none"}


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


def call(name: str, **arguments: Any) -> str:
    """Return a call as the template writes it, so that the next request continues the turn."""
    return f'<tool_call>{{"name":"{name}","arguments":{json.dumps(arguments)}}}</tool_call>'


LOOKS = ["I look." + call("get_synonym_value", synonym=word) for word in ("Blazing", "Warm")]


def extracts(*values: int) -> str:
    return call("extract_synonym_values", synonym_values=list(values))


class Script(ScriptedEngine):
    """Writes the texts of an episode, and notes the tokens. It kills the agent during turn `kills_at`."""

    program: psutil.Process
    """The program of the guide, with a child for each episode."""

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


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The agent's function, the addresses of its resources server and its program, and an endpoint on an engine."""

    agent: str
    url: str
    listening: tuple[str, int]
    engine: Script
    endpoint: ScriptedEndpoint

    def play(
        self, texts: list[str], *, thinking: Thinking = OFF, kills_at: int | None = None, **settings: Any
    ) -> Trajectory:
        self.engine.begin(texts, kills_at)
        task = replace(load(ROW), key="row", thinking=thinking)
        return self.endpoint.play(task, self.agent, env=configure_env("nemo_gym", {"url": self.url}), **settings)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    python, port, own_port = python_with(f"nemo-gym=={VERSION}", "3.12"), free_port(), free_port()
    place, engine = tmp_path_factory.mktemp("guide"), Script([])
    *_, program, solve = blocks("docs/agents.md", "python")
    (place / PROGRAM).write_text(program, encoding="utf-8")
    assert GUIDES_PORT in solve
    (place / "my_gym.py").write_text(solve.replace(GUIDES_PORT, str(own_port)), encoding="utf-8")
    url, listening = f"http://127.0.0.1:{port}", ("127.0.0.1", own_port)

    def ready() -> str:
        socket.create_connection(listening).close()
        return url

    with (
        serving([python, SERVER, MODULE, "ExampleMultiStepResourcesServer", str(port)], lambda: url),
        serving([python, place / PROGRAM, "127.0.0.1", str(port), str(own_port)], ready) as server,
        closing(ScriptedEndpoint(tmp_path_factory.mktemp("model"), TOKENIZER, engine)) as endpoint,
    ):
        engine.program = psutil.Process(server.pid)
        agent = f"{place}/my_gym.py:solve"
        yield Setup(agent=agent, url=url, listening=listening, engine=engine, endpoint=endpoint)


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
    assert one.failure is not None
    assert one.failure.kind is FailureKind.ENVIRONMENT
    assert one.stop is Stop.FAILURE


@pytest.mark.judges
def test_an_agent_ends_with_its_episode(setup: Setup) -> None:
    """NeMo-Gym would repeat its request to the lost model for ever."""
    program = setup.engine.program
    before = program.children()
    with socket.create_connection(setup.listening) as episode:
        episode.sendall(json.dumps([ROW, NOWHERE]).encode() + b"\n")
        episode.settimeout(1.0)
        with pytest.raises(TimeoutError):
            episode.recv(1)
        (agent,) = (one for one in program.children() if one not in before)
    agent.wait(START_S)
