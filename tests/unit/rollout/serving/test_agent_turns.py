"""A turn of an agent is the same turn without an agent: by each route, whole or streamed, in each family."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from support.model_families import tokenizer_of
from support.replay_engine import ReplayEngine
from support.route_agents import REPLIES
from support.scripted_endpoint import LIMITS, ScriptedEndpoint
from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED, Thinking
from temper.envs.core.turn_text import Call
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.formats.messages import PROBE_TOOLS, probe_message
from temper.rollout.trajectory import Stop

FAMILIES = ("qwen3", "nemotron_nano_v2", "gemma4_v5", "llama3_1")
"""Thinking by a template variable, by a system text, with special tokens around calls, and none."""


class OneTurn(ReplayEngine):
    """Writes one text in each turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__({})
        self._tokenizer = tokenizer
        self.text = ""

    async def generate(self, request: TurnRequest) -> Completion:
        ids = (*self._tokenizer(self.text, add_special_tokens=False)["input_ids"], self._tokenizer.eos_token_id)
        whole = Completion(token_ids=ids, logprobs_T=(-0.5,) * len(ids), versions_T=(0,) * len(ids), finished=True)
        return whole.first(request.max_tokens)


@dataclass(frozen=True, kw_only=True)
class Family:
    renderer: Renderer
    engine: OneTurn
    endpoint: ScriptedEndpoint


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    tokenizer = tokenizer_of(request.param)
    engine = OneTurn(tokenizer)
    with closing(ScriptedEndpoint(tmp_path_factory.mktemp("turns") / "model", tokenizer, engine)) as endpoint:
        yield Family(renderer=Renderer(tokenizer), engine=engine, endpoint=endpoint)


def texts_of(family: Family, thought: str) -> dict[str, str]:
    """Turns with a whole, a cut and a bad call, and texts around them."""
    text = family.renderer.answer_text(probe_message(1), thinks=False)
    call = family.renderer.text(family.renderer.encode(text))
    cut = "x" * (LIMITS.turn_tokens - len(family.renderer.encode(thought)) - len(family.renderer.encode(call)) // 2)
    return {
        "call": thought + call,
        "text and call": f"{thought}I call. {call}",
        "text": f"{thought}a < b",
        "bad call": thought + call.replace("probe_first", "").replace('"name"', '"nom"'),
        "good and bad call": thought + call + call[: len(call) // 2],
        "part of a mark": f"{thought}x {call[:3]}",
        "cut call": thought + cut + call,
        "cut text": f"{thought}I {'go on ' * LIMITS.turn_tokens}",
        "cut thought": "I think " * LIMITS.turn_tokens,
        "nothing": thought,
        "no thought": "so",
    }


def modes_of(family: Family) -> list[tuple[Thinking, str]]:
    """The modes of a family, with a thought in its form."""
    tags = family.renderer.format.tags
    if tags is None:
        return [(OFF, "")]
    reasoning = {"role": "assistant", "content": "-", "reasoning_content": "I look"}
    thought, closing, _ = family.renderer.answer_text(reasoning, thinks=True).partition(tags.closing)
    return [(OFF, ""), *((mode, f"{thought}{closing}\n") for mode in (UNLIMITED, LOW_EFFORT))]


@pytest.mark.parametrize("tools", [(), PROBE_TOOLS], ids=["", "tools"])
def test_a_turn_is_the_same_by_each_route_and_without_an_agent(family: Family, tools: Any) -> None:
    for thinking, thought in modes_of(family):
        asked = ({"role": "user", "content": "2+2=?"},)
        task = Task(key="t", messages=asked, spec={"answer": "4"}, thinking=thinking, tools=tools)
        for name, text in texts_of(family, thought).items():
            if (not tools or thinking is LOW_EFFORT) and name not in ("call", "bad call"):
                continue
            family.engine.text = text
            (own,) = (alone := family.endpoint.play(task, None)).turns
            played = family.endpoint.play(task, "support.route_agents.ask_all")
            assert (played.failure, played.stop, played.truncated) == (None, alone.stop, alone.truncated), name
            assert alone.stop is (Stop.LENGTH if name.startswith("cut") else Stop.ENV), name
            assert [turn == own for turn in played.turns] == [True] * 6, name
            parsed = family.renderer.parse(own.text, task, own.context_ids.tolist())
            calls = [call for call in parsed.calls if isinstance(call, Call)]
            readable = tools and len(calls) == len(parsed.calls)
            for whole, streamed in REPLIES:
                assert (streamed, whole.reasoning.strip()) == (whole, parsed.reasoning or ""), name
                assert whole.arguments == [(call.name, call.arguments) for call in calls if readable], name
                assert whole.content.strip() == (parsed.content if readable else parsed.answer).strip(), name
