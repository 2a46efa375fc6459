"""Prompts find the turn that they continue. Errors of the engine differ from errors of the agent."""

import asyncio

import pytest
from support import tiny_models
from support.bound import bound
from support.direct_agents import DirectServer
from support.scripted_engine import RENDERER, ROOM, TAGS, ScriptedEngine

from temper.envs.core.errors import FailureKind
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.episodes.agent_session import TurnTree
from temper.rollout.episodes.episode import EpisodeRunner
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.turn_sampler import TurnSampler
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import Trajectory, TurnFault


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(load_tokenizer(tiny_models.qwen3(tmp_path_factory.mktemp("tree") / "model")))


@pytest.fixture
def tree(renderer: Renderer) -> TurnTree:
    """A conversation of two turns, and another one."""
    made = TurnTree(renderer)
    for parent, text in ((-1, "ask one"), (0, "ask one, two"), (-1, "else")):
        made.add(parent, renderer.encode(text))
    return made


@pytest.mark.parametrize(
    ("prompt", "parent", "rest"),
    [
        ("ask one, two, three", 1, ", three"),
        ("ask one, more", 0, ", more"),
        ("ask", -1, "ask"),
        ("ask one, two", 0, ", two"),  # a turn itself is sampled again
        ("elsewhere", 2, "where"),
    ],
)
def test_the_longest_turn_is_continued(prompt: str, parent: int, rest: str, tree: TurnTree, renderer: Renderer) -> None:
    ids = renderer.encode(prompt)
    found, context = tree.find_parent(ids)
    assert (found, renderer.decode(context)) == (parent, rest)
    assert tree.prompt_ids(found, context) == ids


def test_equal_text_of_other_tokens_is_continued_with_the_sampled_ones(renderer: Renderer) -> None:
    class Merging:
        """A tokenizer that encodes two letters a as one token, which the model did not sample."""

        def decode(self, ids: tuple[int, ...]) -> str:
            return "".join({1: "a", 2: "aa", 3: "b"}[token] for token in ids)

        def encode(self, text: str) -> tuple[int, ...]:
            return tuple({"a": 1, "b": 3}[letter] for letter in text)

    tree = TurnTree(Merging())  # type: ignore[arg-type]
    for parent, ids in ((-1, (3, 1)), (0, (3, 1, 3, 1, 1))):
        tree.add(parent, ids)
    found, context = tree.find_parent((3, 1, 3, 2, 3))  # all tokens of the first turn, and the text of the second
    assert (found, context) == (1, (3,))
    assert tree.prompt_ids(found, context) == (3, 1, 3, 1, 1, 3)


CALL = '<tool_call>{"name": "get", "arguments": {"key": "a"}}</tool_call>'


def play(agent: str, engine: ScriptedEngine) -> Trajectory:
    sampler = TurnSampler(engine, TAGS, ThinkingConfig(), turn_tokens=ROOM.turn_tokens)
    runner = EpisodeRunner(sampler=sampler, renderer=RENDERER, limits=ROOM, agents=DirectServer())
    task = Task(key="t", messages=({"role": "user", "content": "2+2=?"},), spec={"answer": "4"}, thinking=OFF)
    return asyncio.run(runner.run(bound(task, "math", agent=f"support.direct_agents.{agent}"), seed=1))


@pytest.mark.parametrize(("agent", "faults"), [("offers", ()), ("offers_nothing", (TurnFault.TOOL_CALL,))])
def test_calls_are_checked_against_the_tools_of_the_request(agent: str, faults: tuple[TurnFault, ...]) -> None:
    answer = play(agent, ScriptedEngine([CALL]))
    assert answer.reward == 1.0
    assert answer.turns[0].faults == faults


class FailingOnce(ScriptedEngine):
    """Fails in its first call."""

    async def generate(self, request: TurnRequest) -> Completion:
        if not self.busiest:
            self.busiest = 1
            raise RuntimeError("out of memory")
        return await super().generate(request)


@pytest.mark.parametrize(
    ("agent", "kind", "turns"),
    [
        ("does_not_recover", FailureKind.ENGINE, 0),
        ("hides_an_error", FailureKind.ENGINE, 0),
        ("goes_on", FailureKind.ENGINE, 1),
        ("repeats", FailureKind.ENVIRONMENT, 1),
        ("too_long", FailureKind.PROMPT_TOO_LONG, 0),
    ],
)
def test_an_error_of_a_request_that_was_never_answered_is_the_cause(agent: str, kind: FailureKind, turns: int) -> None:
    answer = play(agent, FailingOnce(["4"]))
    assert answer.failure is not None
    assert (answer.failure.kind, len(answer.turns)) == (kind, turns)
