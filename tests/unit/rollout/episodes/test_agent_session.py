"""Prompts find the turn that they continue. Errors of the engine differ from errors of the agent."""

import asyncio
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support import tiny_models
from support.bound import bound
from support.direct_agents import DirectServer
from support.scripted_engine import RENDERER, ROOM, TAGS, ScriptedEngine

from temper.envs.core.errors import FailureKind
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.episodes.agent_session import TurnTree
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.resume import PartialEpisode
from temper.rollout.episodes.runner import EpisodeRunner
from temper.rollout.episodes.turn_sampler import TurnSampler
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import Stop, Trajectory, TurnFault


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(load_tokenizer(tiny_models.qwen3(tmp_path_factory.mktemp("tree") / "model")))


@pytest.fixture
def tree(renderer: Renderer) -> TurnTree:
    """A conversation of two turns, and another one."""
    made = TurnTree(renderer)
    for parent, text, answer in ((-1, "ask", " one"), (0, ", ", "two"), (-1, "", "else")):
        made.add(parent, renderer.encode(text), renderer.encode(answer))
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
    before, text = tree.split(prompt)
    assert (renderer.decode(before), text) == (prompt.removesuffix(rest), rest)


class Merging:
    """A tokenizer that encodes two letters a as one token, which the model did not sample. The token 0 ends a turn."""

    format = SimpleNamespace(end_ids=(0,), parted_by=(".",))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join({0: ".", 1: "a", 2: "aa", 3: "b"}[token] for token in ids)


def test_equal_text_is_continued_with_the_sampled_tokens() -> None:
    tree = TurnTree(Merging())  # type: ignore[arg-type]
    for parent, context, sampled in ((-1, (3,), (1,)), (0, (3,), (1, 1))):
        tree.add(parent, context, sampled)
    assert tree.split("babaab") == ([3, 1, 3, 1, 1], "b")
    assert tree.find_parent((3, 1, 3, 1, 1, 3)) == (1, (3,))


def test_the_end_of_a_turn_is_encoded_with_the_text_after_it() -> None:
    tree = TurnTree(Merging())  # type: ignore[arg-type]
    tree.add(-1, (3,), (1, 0))
    assert tree.split("ba.b") == ([3, 1], ".b")


@pytest.mark.parametrize(
    ("prompt", "split"),
    [
        ("ba.a", ([3, 1, 3], ".a")),
        ("bab.a", ([3, 1, 3], ".a")),  # the client has added the stop string
        ("baa.a", ([], "baa.a")),  # the client has changed the turn
    ],
)
def test_a_stop_string_that_a_client_did_not_get_is_kept(prompt: str, split: tuple[list[int], str]) -> None:
    tree = TurnTree(Merging())  # type: ignore[arg-type]
    tree.add(-1, (3,), (1, 3), unsent=1)
    assert tree.split(prompt) == split


def test_the_text_of_a_prompt_counts_not_that_of_its_tokens() -> None:
    """A tokenizer may normalize characters, so decoding its ids gives another text than a client sends."""
    tree = TurnTree(Merging())  # type: ignore[arg-type]
    tree.add(-1, (3,), (1,), text="B")
    assert tree.split("Bab") == ([3, 1], "b")
    assert tree.split("bab") == ([], "bab")


@pytest.mark.parametrize("branches", [False, True])
def test_the_memory_of_turns_is_linear_in_their_tokens(branches: bool) -> None:
    def grown(turns: int) -> int:
        tracemalloc.start()
        tree = TurnTree(RENDERER)
        for turn in range(turns):
            tree.add(-1 if branches else turn - 1, (turn % 250, *[7] * 99), (5,) * 30)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size

    assert grown(200) < 2.2 * grown(100) < 2.2 * 100 * 130 * 8  # bytes: 4 of an id, 1 of its text, and objects


CALL = '<tool_call>{"name": "get", "arguments": {"key": "a"}}</tool_call>'


def runner_of(engine: ScriptedEngine, limits: EpisodeLimits = ROOM) -> EpisodeRunner:
    sampler = TurnSampler(engine, TAGS, ThinkingConfig(), turn_tokens=limits.turn_tokens)
    return EpisodeRunner(sampler=sampler, renderer=RENDERER, limits=limits, agents=DirectServer())


def task_of(agent: str) -> Task:
    task = Task(key="t", messages=({"role": "user", "content": "2+2=?"},), spec={"answer": "4"}, thinking=OFF)
    return bound(task, "math", agent=f"support.direct_agents.{agent}", max_turns=3)


def play(agent: str, engine: ScriptedEngine, *, limits: EpisodeLimits = ROOM) -> Trajectory:
    return asyncio.run(runner_of(engine, limits).run(task_of(agent), seed=1))


@pytest.mark.parametrize(("agent", "faults"), [("offers", ()), ("offers_nothing", (TurnFault.TOOL_CALL,))])
def test_calls_are_checked_against_the_tools_of_the_request(agent: str, faults: tuple[TurnFault, ...]) -> None:
    answer = play(agent, ScriptedEngine([CALL]))
    assert answer.reward == 1.0
    assert answer.turns[0].faults == faults


def test_a_cut_thought_is_judged_as_without_an_agent() -> None:
    engine = ScriptedEngine(["I think " * ROOM.turn_tokens])
    task = Task(key="t", messages=({"role": "user", "content": "-"},), spec={"answer": "4"}, thinking=UNLIMITED)
    named = bound(task, "math", agent="support.direct_agents.gets_no_answer")
    agent, own = (asyncio.run(runner_of(engine).run(one, seed=1)) for one in (named, bound(task, "math")))
    assert agent.truncated
    assert (agent.stop, agent.reward, agent.score) == (own.stop, own.reward, own.score)


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
def test_the_error_of_an_unanswered_request_is_the_cause(agent: str, kind: FailureKind, turns: int) -> None:
    answer = play(agent, FailingOnce(["4"]))
    assert answer.failure is not None
    assert (answer.failure.kind, len(answer.turns)) == (kind, turns)


def test_overlapping_requests_have_seeds_in_their_order() -> None:
    class Noting(ScriptedEngine):
        """Notes the seed and the name of each prompt."""

        def __init__(self) -> None:
            super().__init__(["4"], seconds=0.05)
            self.seeds: dict[tuple[int, ...], int] = {}
            self.names: set[str | None] = set()

        async def generate(self, request: TurnRequest) -> Completion:
            self.seeds[request.prompt_ids] = request.seed
            self.names.add(request.name)
            return await super().generate(request)

    one_by_one, at_once = Noting(), Noting()
    for agent, engine, busiest in (("asks_three", one_by_one, 1), ("asks_three_at_once", at_once, 3)):
        answer = play(agent, engine)
        assert (answer.reward, answer.parents, engine.busiest) == (1.0, (-1, -1, -1), busiest)
        assert len(set(engine.seeds.values())) == len(engine.names) == 3
    assert at_once.seeds == one_by_one.seeds


def test_overlapping_requests_obey_the_limit_of_turns() -> None:
    answer = play("asks_three_at_once", ScriptedEngine(["4"], seconds=0.05), limits=replace(ROOM, turns=2))
    assert (answer.stop, len(answer.turns)) == (Stop.TURNS, 2)


def test_a_refusal_reported_late_is_the_cause() -> None:
    answer = play("reports_a_refusal_late", ScriptedEngine(["4"]))
    assert (answer.failure, answer.stop, len(answer.turns)) == (None, Stop.EPISODE_LENGTH, 1)


def test_a_checkpoint_has_no_turns_of_an_agent() -> None:
    """The episode starts anew, because an agent can't replay them."""

    async def partial_after_a_turn() -> PartialEpisode | None:
        runner = runner_of(ScriptedEngine(["4"]))
        episode = runner.episode(task_of("asks_three"), seed=1)
        await runner.play(episode)
        assert len(episode.turns) == 3
        return runner.to_partial(episode)

    assert asyncio.run(partial_after_a_turn()) is None
