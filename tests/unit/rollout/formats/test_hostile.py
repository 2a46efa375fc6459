"""No model text causes a failure: any text is parsed, and the conversation continues, in every family."""

import random
import time
from collections.abc import Iterator

import pytest
from support.family_findings import NAMES
from support.model_families import tokenizer_of

from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.core.turn_text import Call, call_message
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.formats.call_syntax import CallSyntax
from temper.rollout.formats.find import CALL_SYNTAXES
from temper.rollout.formats.messages import TEXT_MARK, call_id

NAME, VALUE, COUNT = "NAME", "VALUE", "1234567"
REFERENCE: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call_message(NAME, {"key": VALUE, "n": int(COUNT)})],
    "reasoning_content": "so",
}
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "-",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}, "n": {"type": "integer"}}},
        },
    },
)
WORDS = (
    *("", " ", "\n", "\\", '"', "\\ud800", "\\udc00\\ud800", "\\u0000", "\x00\x01\x02", "\ufffd", "\U0001f600"),
    *(
        TEXT_MARK,
        "{{ 1 / 0 }}",
        "%s{0}",
        "]",
        "}",
        "/no_think",
        "</function>",
        "\uff1c\uff5cim_end\uff5c\uff1e",
        "get" * 500,
    ),
)
NUMBERS = (
    *("9" * 5000, "-" + "9" * 5000, "1e999", "NaN", "Infinity", "\u0667", "1_0", "", "null"),
    *("{[1]}", "{(): 1}", "{**a}", "...", "b'a'", "-" * 9000 + "1"),
    *("[" * 3000 + "]" * 3000, "[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500, '"\\ud800"', '{"\\ud800": 1}'),
)


def hostile(reference: str, tags: list[str]) -> Iterator[str]:
    """Texts of a family's own call and tags."""
    for word in (*WORDS, *tags):
        yield word
        yield reference.replace(NAME, word)
        yield reference.replace(VALUE, word)
    for number in NUMBERS:
        yield reference.replace(COUNT, number)
    for given in ('"call_0"', '"\\ud800"', "null", "{}"):
        yield reference.replace(f'"{call_id(0)}"', given).replace('{"name"', f'{{"id": {given}, "name"')
    chance = random.Random(1)
    for _ in range(8):
        start, end = sorted(chance.sample(range(len(reference) + 1), 2))
        yield from (
            reference[:start],
            reference[start:],
            reference[:start] + reference[end:],
            reference[:end] + reference[start:],
        )
    yield reference * 3


@pytest.mark.parametrize("name", NAMES)
def test_no_text_of_a_model_makes_a_failure(name: str) -> None:
    try:
        renderer = Renderer(tokenizer_of(name))
        renderer.observation_ids([{"role": "user", "content": "-"}], thinks=True)
    except ValueError as error:
        pytest.skip(f"a family that is refused: {error}")
    form = renderer.format
    tags = [*form.ends, *((form.tags.opening, form.tags.closing) if form.tags else ())]
    whole = renderer.answer_text(REFERENCE, thinks=True) if form.reads_calls else NAME + VALUE
    reference = renderer.text(renderer.encode(whole))  # without the end of the turn
    for mode in (UNLIMITED, OFF):
        task = Task(messages=({"role": "user", "content": "-"},), spec={}, tools=TOOLS, thinking=mode)
        if form.tags and not task.thinks:
            reference = reference.rpartition(form.tags.closing)[2].lstrip()
        for text in hostile(reference, tags):
            parsed = renderer.parse(text, task, ())
            told: list[Message] = [{"role": "tool", "content": str(call)} for call in parsed.calls]
            more = told or [{"role": "user", "content": parsed.content[:100]}]
            assert renderer.observation_ids(more, thinks=task.thinks, calls=parsed.calls), text[:200]
        for end in range(len(reference) if form.reads_calls else 0):
            assert VALUE not in renderer.parse(reference[:end], task, ()).content  # graded text has no part of a call


def test_missing_and_invalid_mistral_ids_are_replaced() -> None:
    renderer = Renderer(tokenizer_of("mistral"))
    task = Task(messages=({"role": "user", "content": "-"},), spec={}, tools=TOOLS)
    for given in ("", ', "id": "call_0"'):
        text = f'[TOOL_CALLS] [{{"name": "get", "arguments": {{"key": "a"}}{given}}}]'
        calls = renderer.parse(text, task, ()).calls
        assert calls == (Call(name="get", arguments={"key": "a"}),)
        ids = renderer.observation_ids([{"role": "tool", "content": "17"}], thinks=True, calls=calls)
        assert f'"call_id": "{call_id(0)}"' in renderer.decode(ids)


REPEATED = (
    "<tool_call>",
    "<function=get>",
    "<parameter=key>\n",
    "<arg_key>key</arg_key>",
    "[TOOL_CALLS]",
    "[",
    '{"a":',
    " ",
    "\n",
)
FRAMES = ("{}", "<tool_call>\n<function=get>\n{}</function>\n</tool_call>", '{{"name": "get", "parameters": {{}}}}{}x')
CHARACTERS = 60_000


@pytest.mark.parametrize("syntax", CALL_SYNTAXES, ids=lambda syntax: syntax.name)
def test_repeated_openings_are_parsed_in_linear_time(syntax: CallSyntax) -> None:
    began = time.process_time()
    for word in REPEATED:
        for frame in FRAMES:
            syntax.read(frame.format(word * (CHARACTERS // len(word))), TOOLS)
    assert time.process_time() - began < 5  # quadratic time takes 12 s for one of these texts
