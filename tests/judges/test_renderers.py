"""Prompts, turns and next turns of chat formats against the package renderers, on random dialogues.

Both get the same byte-level tokenizer of a family, with its chat template. Temper renders with the template, and renderers
has a class for each family.
"""

import random
import sys
from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from judges.packages import RENDERERS, installed
from support.model_families import tokenizer_of
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Message, Task, Tool
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.core.turn_text import Call, call_message
from temper.rollout.episodes.renderer import Renderer

DIALOGUES = 50
FAMILIES = {
    "qwen3": "qwen3",
    "qwen3_vl": "qwen3-vl",
    "qwen3_5_think": "qwen3.5",
    "qwen3_6": "qwen3.6",
    "qwen3_8": "qwen3.8",
    "glm4moe": "glm-4.5",
    "deepseek_r1_distill": "deepseek-r1",
    "llama3_1": "llama-3",
    "llama3_2": "llama-3",
    "nemotron_3_nano": "nemotron-3",
    "nemotron_3_super": "nemotron-3",
    "nemotron_3_ultra": "nemotron-3-ultra",
    "nemotron_3_5_lightning": "nemotron-3.5",
    "gemma4_v5": "gemma4",
}
"""The class of renderers for the template of a family."""
UNMATCHED = {
    "deepseekv3": "the template opens thinking after a user's message only, and no class of renderers does",
    "gptoss": "renderers takes harmony's own vocabulary, which is a separate download",
}
BOS = {"llama": "<|begin_of_text|>", "deepseek": "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "gemma": "<bos>"}
MORE_TOKENS = (
    *("<|endoftext|>", "[gMASK]", "<sop>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</think>"),
    *("<tool_response>", "</tool_response>", "<|eom_id|>", "<|end_of_text|>", "<eos>", "<image|>", "<|image>"),
)
"""Tokens that renderers looks up, and that not every template names."""
TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a key.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string"}, "count": {"type": "integer"}, "sure": {"type": "boolean"}},
            "required": ["key"],
        },
    },
}
WORDS = (
    "Paris",
    "17",
    "x < 2",
    '"quoted"',
    "true",
    "a\nb",
    "caf\u00e9",
    "\u6c34",
    "{}",
    "1.50",
    "end.",
    "\\boxed{3}",
    "null",
)


@pytest.fixture(scope="module")
def package() -> Any:
    sys.path.append(str(installed(*RENDERERS)))
    import renderers

    return renderers


def known_tokenizer(family: str, merges: Sequence[tuple[str, str]] = ()) -> PreTrainedTokenizerBase:
    """The tokenizer of a family with all tokens that renderers looks up."""
    tokenizer = tokenizer_of(family, merges=merges)
    tokenizer.bos_token = next((bos for start, bos in BOS.items() if family.startswith(start)), "<s>")
    known = tokenizer.get_vocab()
    tokenizer.add_tokens(
        [AddedToken(token, special=True) for token in (*MORE_TOKENS, *BOS.values()) if token not in known]
    )
    return tokenizer


def class_of(package: Any, family: str, tokenizer: PreTrainedTokenizerBase, **settings: object) -> Any:
    """The renderer of renderers for a family. It gets the settings that it knows."""
    config = package.config_from_name(FAMILIES[family])
    settings |= {"date_string": date.today().strftime("%d %b %Y")} if family == "llama3_2" else {}
    known = {name: value for name, value in settings.items() if name in type(config).model_fields}
    return package.create_renderer(tokenizer, config.model_copy(update=known))


def words(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, 5)))


def compared(renderer: Renderer, other: Any, draw: random.Random, *, thinks: bool) -> dict[str, tuple[Any, Any]]:
    """Both sides of one random dialogue: the prompt, the turn as parsed, and the ids up to the next turn."""
    tools = [TOOL] * draw.randint(0, 1) if renderer.format.reads_calls else []
    messages: list[Message] = [{"role": "user", "content": words(draw)}]
    if draw.random() < 0.5:
        messages.insert(0, {"role": "system", "content": words(draw)})
    task = Task(messages=tuple(messages), tools=tuple(tools), thinking=UNLIMITED if thinks else OFF, spec={})
    prompt = renderer.prompt_ids(task)
    arguments = {"key": words(draw), "count": draw.randint(-9, 99), "sure": draw.random() < 0.5}
    calls = [call_message("look_up", arguments)] if tools else []
    turn: Message = {"role": "assistant", "content": "" if calls else words(draw)}
    turn |= {"reasoning_content": words(draw)} if thinks and renderer.format.tags else {}
    turn |= {"tool_calls": calls} if calls else {}
    ids = renderer.encode(renderer.answer_text(turn, thinks=thinks, context_ids=prompt))
    parsed = renderer.parse(renderer.text(ids), task, prompt)
    found = other.parse_response(list(ids), tools=tools or None, prompt_ids=list(prompt))
    new: Message = {"role": "tool", "content": words(draw)} if calls else {"role": "user", "content": words(draw)}
    after = renderer.observation_ids([new], thinks=thinks, calls=parsed.calls, after=ids)
    bridged = other.bridge_to_next_turn(list(prompt), list(ids), [new], tools=tools or None)
    text = renderer.decode
    return {
        "prompt": (text(prompt), text(other.render_ids(messages, tools=tools or None, add_generation_prompt=True))),
        "turn": (
            (
                (parsed.reasoning or "").strip(),
                parsed.content.strip(),
                [(call.name, call.arguments) for call in parsed.calls if isinstance(call, Call)],
            ),
            (
                (found.reasoning_content or "").strip(),
                found.content.strip(),
                [(call.name, call.arguments) for call in found.tool_calls],
            ),
        ),
        "next turn": (text((*prompt, *ids, *after)), None if bridged is None else text(bridged.token_ids)),
    }


def with_booleans(turn: Any) -> Any:
    """Return the turn with the declared boolean as a boolean, also if the template wrote `True` or `False`."""
    reasoning, content, calls = turn
    written = {"True": True, "False": False}
    return (
        reasoning,
        content,
        [(name, given | {"sure": written.get(given["sure"], given["sure"])}) for name, given in calls],
    )


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.judges(suite="renderers", run=f"{name}: prompt, turn, next turn"))
        for name in (*FAMILIES, *UNMATCHED)
    ],
)
def test_a_family_agrees(package: Any, record_property: Any, family: str) -> None:
    record_property("version", RENDERERS[0].split("==")[1])
    if family in UNMATCHED:
        pytest.skip(UNMATCHED[family])
    tokenizer = known_tokenizer(family)
    renderer = Renderer(tokenizer)
    thinks = renderer.format.tags is not None
    other = class_of(package, family, tokenizer, enable_thinking=thinks, thinking_retention="all")
    draw = random.Random(family)
    agreed, explained, differing = 0, 0, []
    for _ in range(DIALOGUES):
        wrong = {
            part: pair for part, pair in compared(renderer, other, draw, thinks=thinks).items() if pair[0] != pair[1]
        }
        agreed += not wrong
        explained += [*wrong] == ["turn"] and wrong["turn"][0] == with_booleans(wrong["turn"][1])
        differing.append(wrong)
    record_property("passed", agreed)
    record_property("differs", DIALOGUES - agreed)
    record_property(
        "why", "renderers reads the template's `True` as text, Temper as a boolean by the schema" if explained else ""
    )
    assert agreed + explained == DIALOGUES, next(filter(None, differing))
