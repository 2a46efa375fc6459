"""Agents of the user on a real engine: requests become turns, and nothing of them is lost."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.documents import blocks
from support.plain_rank import rank_logprobs
from support.scripted_endpoint import LONGEST, ScriptedEndpoint
from support.scripted_engine import RENDERER, TOKENIZER, ScriptedEngine, completion
from vllm.sampling_params import SamplingParams

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.errors import FailureKind
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED, Thinking, up_to
from temper.envs.source import open_source
from temper.learner.batches.samples import samples_from_groups
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.models.fresh import byte_tokenizer
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import RefusedRequest
from temper.rollout.config import EpisodeLimits, RolloutConfig
from temper.rollout.engines.config import EngineConfig
from temper.rollout.episodes.agent_session import AgentReply, AgentRequest
from temper.rollout.episodes.worker import RolloutWorker
from temper.rollout.serving.agent_endpoint import (
    SESSION,
    EpisodeEngine,
    count_characters,
    read_tools,
    require_plain,
    with_first_notice,
)
from temper.rollout.token_arrays import tokens_of
from temper.rollout.trajectory import Group, Stop, Ticket, WeightVersion
from temper.rollout.vllm_backend import make_agent_server, make_engine

CONFIG = RolloutConfig(
    engine=EngineConfig(dtype="float32", max_model_len=512, max_sequences=32),
    limits=EpisodeLimits(turn_tokens=24, total_tokens=512, timeout_s=8.0),
    thinking=ThinkingConfig(grace=2, answer_tokens=8),
)
CALLS = 20
LONGEST_EXAMPLE = 15
TOLERANCE = 1e-5
"""Largest difference of a log-probability, in nats, in float32."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A worker on a model that writes only a and b, and the trainer of this model."""

    runner: asyncio.Runner
    worker: RolloutWorker
    rank: TrainerWorker

    def play(
        self,
        agent: str,
        *,
        samples: int = 2,
        thinking: Thinking = OFF,
        spec: dict[str, Any] | None = None,
        max_turns: int | None = None,
        env: str = "math",
    ) -> Group:
        named = agent if ":" in agent else f"support.user_agents.{agent}"
        made = open_source(bind(env, EnvConfig(agent=named, max_turns=max_turns)), split="train", seed=1).task(0)
        task: Task = replace(made, thinking=thinking, spec=made.spec | (spec or {}))
        ticket = Ticket(number=1, task=task, admitted=WeightVersion(step=0))
        return self.runner.run(self.worker.run_group(ticket, samples))


def writes_letters(model: Path) -> Path:
    """Give two letters almost all probability, so that clients send back the text of the same tokens.

    The first hidden dimension is about 8 everywhere. It gives both letters logits of about 12, and other tokens -12.
    The remaining dimensions choose between the letters. Larger logits would round too coarsely for `TOLERANCE`.
    """
    file, letters = model / "model.safetensors", [byte_tokenizer()(each)["input_ids"][0] for each in "ab"]
    weights = load_file(file)
    weights["model.embed_tokens.weight"][:, 0] = 1.0
    head = torch.zeros_like(weights["lm_head.weight"])
    head[letters] = torch.randn(2, head.shape[1], generator=torch.Generator().manual_seed(0))
    head[:, 0] = -1.5
    head[letters, 0] = 1.5
    save_file(weights | {"lm_head.weight": head}, file, metadata={"format": "pt"})
    return model


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    torch.manual_seed(0)
    model = writes_letters(tiny_models.qwen3(tmp_path_factory.mktemp("agents") / "model"))
    worker = RolloutWorker(CONFIG, seed=1, make_engine=make_engine, make_agent_server=make_agent_server)
    rank = TrainerWorker(0, 1, "127.0.0.1", free_port(), LearnerConfig())
    with asyncio.Runner() as runner:
        runner.run(worker.start(str(model), 0))
        rank.load(str(model), optim=OptimConfig(), total_steps=1)
        yield Setup(runner=runner, worker=worker, rank=rank)
        runner.run(worker.close())
    rank.close()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedEndpoint]:
    engine = ScriptedEngine(["</think>17"])
    with closing(ScriptedEndpoint(tmp_path_factory.mktemp("scripted"), TOKENIZER, engine)) as endpoint:
        yield endpoint


@pytest.mark.parametrize("agent", ["chat", "streamed", "responses", "messages"])
def test_a_request_of_each_client_is_a_turn(agent: str, setup: Setup) -> None:
    group = setup.play(agent)
    assert not group.failed
    for one in group.trajectories:
        (turn,) = one.turns
        assert set(turn.answer) <= {"a", "b"}
        assert turn.answer
        assert len(turn.sampled_ids) == CONFIG.limits.turn_tokens
        assert one.reward == 0.0  # the environment has judged these letters
        assert (one.stop, turn.truncated) == (Stop.LENGTH, True)
    samples = samples_from_groups([group], advantage="dr_grpo", mask_truncated=True)
    assert [one.trained_tokens for one in samples] == [0, 0]


def test_warnings_of_a_worker_are_shown_beside_routes_for_agents(setup: Setup) -> None:
    setup.play("chat")  # the first episode starts them
    assert logging.getLogger("temper").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(("agent", "reward"), [("repair", 1.0), ("ignore_files", 0.0), ("fill_the_folder", 0.0)])
def test_hidden_tests_judge_the_files_in_the_folder_of_an_agent(agent: str, reward: float, setup: Setup) -> None:
    group = setup.play(agent, samples=1, env="workspace")
    assert [one.failure for one in group.failed] == []
    assert [one.reward for one in group.trajectories] == [reward]


def test_turns_continue_a_conversation_or_branch(setup: Setup) -> None:
    group = setup.play("converse")
    assert not group.failed
    for one in group.trajectories:
        assert one.parents == (-1, 0, 1, -1, 3)
        assert one.branches == [[0, 1, 2], [3, 4]]
        assert one.reward == 1.5
        assert [len(turn.sampled_ids) for turn in one.turns] == [8] * 5


def test_the_trainer_agrees_with_the_engine_on_each_branch(setup: Setup) -> None:
    group = setup.play("converse")
    samples = samples_from_groups([group], advantage="dr_grpo")
    assert len(samples) == 4
    found = rank_logprobs(setup.rank, [replace(one, experts=None) for one in samples])
    for sample, expected in zip(samples, found, strict=True):
        trained = sample.trained_T
        assert np.abs(np.asarray(expected)[trained] - sample.behaviour_T[trained]).max() < TOLERANCE


def test_each_sampled_token_of_a_tree_is_trained_once(setup: Setup) -> None:
    group = setup.play("converse", samples=1)
    (one,) = group.trajectories
    forked = replace(one, parents=(-1, 0, 0, -1, 3))  # the second and the third turn both follow the first
    samples = samples_from_groups([replace(group, trajectories=(forked,))], advantage="dr_grpo")
    assert forked.branches == [[0, 1], [0, 2], [3, 4]]
    assert [sample.trained_tokens for sample in samples] == [16, 8, 16]
    assert [sample.place for sample in samples] == [None] * 3  # no record of the trainer for several branches
    first = tokens_of(forked.turns[0].context_ids) + tokens_of(forked.turns[0].sampled_ids)
    assert all(tokens_of(sample.ids)[: len(first)] == first for sample in samples[:2])


def test_turns_obey_the_budget_of_the_episode(setup: Setup) -> None:
    for agent in ("chat", "messages"):
        group = setup.play(agent, thinking=up_to(4))
        assert not group.failed
        for one in group.trajectories:
            assert 4 <= one.turns[0].thinking.tokens <= 6
            assert one.turns[0].injected_T.any()
            assert 0 < one.turns[0].thinking.answer_tokens <= 8


@pytest.mark.parametrize("agent", ["chat", "responses", "messages"])
def test_the_prompt_has_the_notice_of_the_mode(agent: str, setup: Setup) -> None:
    group = setup.play(agent, thinking=LOW_EFFORT)
    marker = byte_tokenizer()(CONFIG.thinking.low_effort_marker, add_special_tokens=False)["input_ids"]
    for one in group.trajectories:
        context = list(tokens_of(one.turns[0].context_ids))
        assert any(context[at : at + len(marker)] == marker for at in range(len(context)))


@pytest.mark.parametrize(
    ("given", "noticed"),
    [
        ("hi", "hi\nN"),
        (
            [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}, {"role": "user", "content": "b"}],
            [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "hi\nN"},
                {"role": "user", "content": "b"},
            ],
        ),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            [{"role": "user", "content": [{"type": "input_text", "text": "hi"}, {"type": "input_text", "text": "N"}]}],
        ),
    ],
)
def test_the_first_user_message_gets_the_notice(given: Any, noticed: Any) -> None:
    assert with_first_notice({"input": given}, "input", "N") == {"input": noticed}


SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}


@pytest.mark.parametrize(
    "offered",
    [
        {"type": "function", "function": {"name": "get", "description": "-", "parameters": SCHEMA}},
        {"type": "function", "name": "get", "parameters": SCHEMA, "strict": True},
        {"name": "get", "description": "-", "input_schema": SCHEMA},
    ],
)
def test_tools_of_each_dialect_are_read(offered: dict[str, Any]) -> None:
    (tool,) = read_tools({"tools": [offered, "nonsense", {"type": "web_search"}]})
    assert tool == {"type": "function", "function": {"name": "get", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "get"}}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"min_tokens": 20}, "min_tokens"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 20}, "truncate_prompt_tokens"),
    ],
)
def test_forms_that_sampling_would_enforce_are_refused(body: dict[str, Any], refused: str) -> None:
    choice, form = {"type": "auto"}, {"type": "text"}
    require_plain({"n": 1, "tool_choice": choice, "response_format": form, "logprobs": False, "min_tokens": 0})
    with pytest.raises(RefusedRequest) as caught:
        require_plain(body)
    assert caught.value.parameter == refused


def test_a_size_has_no_reasoning_because_templates_may_drop_it() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "I think"}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]}
    assert count_characters([{"role": "user", "content": "hi"}, thought, said]) == 2


def test_a_prompt_that_vllm_writes_as_ids_is_answered() -> None:
    """As those of gpt-oss."""
    asked = []

    async def answer(request: AgentRequest) -> AgentReply:
        asked.append(request.ids)
        return AgentReply(completion=completion("4"), text="4", readable=True)

    async def texts() -> list[str]:
        SESSION.set(SimpleNamespace(answer=answer, thinking=OFF))  # type: ignore[arg-type]
        llm: Any = SimpleNamespace(model_config=SimpleNamespace(), renderer=SimpleNamespace())
        made = EpisodeEngine(llm, RENDERER.format).generate({"prompt_token_ids": [1, 2]}, SamplingParams(), "r")
        return [one.outputs[0].text async for one in made]

    assert (asyncio.run(texts()), asked) == (["4"], [(1, 2)])


def test_text_ends_before_a_stop_string_and_tokens_with_it(setup: Setup) -> None:
    for one in setup.play("stopped").trajectories:
        assert (one.reward, one.parents) == (1.0, (-1, 0))  # the stop string is no reason for a branch
        assert max(len(turn.sampled_ids) for turn in one.turns) < CONFIG.limits.turn_tokens


def test_an_answer_is_judged_by_the_environment(setup: Setup) -> None:
    assert [one.reward for one in setup.play("right").trajectories] == [1.0, 1.0]


def test_the_agent_of_the_guide_makes_two_turns(setup: Setup, tmp_path: Path) -> None:
    example, *_ = blocks("docs/agents.md", "python")
    assert len(example.splitlines()) <= LONGEST_EXAMPLE
    (tmp_path / "my_agent.py").write_text(example, encoding="utf-8")
    group = setup.play(f"{tmp_path}/my_agent.py:solve")
    assert [one.parents for one in group.trajectories] == [(-1, 0)] * 2


@pytest.mark.parametrize(("thinking", "thought"), [(OFF, ""), (UNLIMITED, "I look\n</think>\n")])
def test_the_tool_loop_of_the_guide_carries_out_the_calls(thinking: Thinking, thought: str, tmp_path: Path) -> None:
    _, loop, *_ = blocks("docs/agents.md", "python")
    (tmp_path / "my_loop.py").write_text(f"from support.user_agents import *\n\n{loop}", encoding="utf-8")
    call = '<tool_call>{"name":"get","arguments":{"key": "a"}}</tool_call>'
    task = Task(key="t", messages=({"role": "user", "content": "a=?"},), spec={"answer": "17"}, thinking=thinking)
    engine = ScriptedEngine([thought + call, thought + "17"])
    with closing(ScriptedEndpoint(tmp_path / "model", TOKENIZER, engine)) as endpoint:
        one = endpoint.play(task, f"{tmp_path}/my_loop.py:solve")
    assert (one.failure, one.parents, one.reward) == (None, (-1, 0), 1.0)
    assert "get a" in TOKENIZER.decode(one.turns[1].context_ids)


def test_an_agent_that_is_killed_after_any_call_fails(setup: Setup) -> None:
    group = setup.play("dies", samples=CALLS)
    assert not group.trajectories
    assert {one.failure.kind for one in group.failed if one.failure} == {FailureKind.ENVIRONMENT}
    assert sorted(len(one.turns) for one in group.failed) == list(range(1, CALLS + 1))


def test_an_agent_without_a_request_is_a_failure(setup: Setup) -> None:
    group = setup.play("silent")
    assert [one.failure.kind for one in group.failed if one.failure] == [FailureKind.ENVIRONMENT] * 2


def test_the_limit_of_turns_truncates_an_agent(setup: Setup) -> None:
    group = setup.play("many", max_turns=3)
    ends = [(one.stop, len(one.turns), one.reward) for one in group.trajectories]
    assert ends == [(Stop.LENGTH, 3, 0.0)] * 2  # each turn was cut too


def test_the_deadline_ends_an_agent_and_its_programs(setup: Setup) -> None:
    group = setup.play("hangs", samples=1)
    assert [one.failure.kind for one in group.failed if one.failure] == [FailureKind.TIMEOUT]
    setup.runner.run(asyncio.sleep(0.5))
    assert not [one for one in psutil.Process().children(recursive=True) if one.name() == "sleep"]


def test_a_key_serves_its_episode_only(setup: Setup, tmp_path: Path) -> None:
    note = tmp_path / "note"
    setup.play("outlives", samples=1, spec={"note": str(note)})
    url, key = note.read_text(encoding="ascii").split()
    body = {"model": "model", "messages": [{"role": "user", "content": "a"}]}

    async def statuses() -> list[int]:
        async with httpx.AsyncClient() as client:
            headers: tuple[dict[str, str], ...] = ({"Authorization": f"Bearer {key}"}, {}, {"x-api-key": "other"})
            answers = [await client.post(f"{url}/chat/completions", json=body, headers=each) for each in headers]
            return [answer.status_code for answer in answers]

    assert setup.runner.run(statuses()) == [401] * 3


def test_sub_agents_are_answered_at_once(setup: Setup) -> None:
    group = setup.play("at_once")
    assert [(one.failure, one.parents, one.reward) for one in group.trajectories] == [(None, (-1,) * 4, 1.0)] * 2


@pytest.mark.parametrize(
    ("words", "most_turns"),
    [
        (1, 1),
        (LONGEST // 5, 100),  # too many tokens
        (2**19, 100),  # too many characters, so that nothing reads them
    ],
)
def test_a_request_beyond_a_limit_has_a_status_on_each_route(
    words: int, most_turns: int, scripted: ScriptedEndpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    task = Task(key="t", messages=({"role": "user", "content": "a=?"},), spec={"answer": "17", "words": words})
    one = scripted.play(task, "support.user_agents.ask_too_much", max_turns=most_turns)
    statuses = one.score.parts
    assert (len(one.turns), set(statuses.values()), len(statuses)) == (1, {400.0}, 6)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_connections_survive_long_tool_calls(scripted: ScriptedEndpoint) -> None:
    """uvicorn closes a connection that is idle for longer than this many seconds, or whose episode has ended."""
    task = Task(key="t", messages=({"role": "user", "content": "a=?"},), spec={"answer": "17"})
    for agent in ("chat", "silent"):
        scripted.play(task, f"support.user_agents.{agent}")
    assert scripted.server.config.timeout_keep_alive >= 3600
    assert not scripted.server.server_state.connections
