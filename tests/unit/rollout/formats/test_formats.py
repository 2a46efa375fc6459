"""Every family's format: detected from its chat template, parsed strictly, and unchanged by a round trip."""

import json
from typing import Any

import pytest
from support.model_families import NEMOTRON_NANO_V2, tokenizer_of
from support.refusals import refuses

from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.core.turn_text import OWN_TAGS, BadCall, Call, answer_text, parse_calls, parse_turn
from temper.learner.models.fresh import byte_tokenizer
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.round_trip import Needs, check_round_trip
from temper.rollout.formats.call_syntax import parse_value
from temper.rollout.formats.find import CALL_SYNTAXES, find_format

ALL = Needs(tools=True, system=True)
TEXT = Needs()
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
GET = (
    {
        "type": "function",
        "function": {
            "name": "get",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string"}, "n": {"type": "integer"}, "on": {"type": "boolean"}},
                "required": ["key"],
            },
        },
    },
)

FAMILIES = [
    ("qwen2_5", "json", None, ("<|im_end|>",)),
    ("qwen3", "json", "<think>", ("<|im_end|>",)),
    ("qwen3_5_think", "xml", "<think>", ("<|im_end|>",)),
    ("nemotron_3_nano", "xml", "<think>", ("<|im_end|>",)),
    ("nemotron_3_super", "xml", "<think>", ("<|im_end|>",)),
    ("nemotron_nano_v2", "toolcall", "<think>", ("<SPECIAL_12>",)),
    ("llama3_1", "llama", None, ("<|eot_id|>",)),
    ("glm4moe", "glm", "<think>", ("<|user|>", "<|observation|>", "<|endoftext|>")),
    ("gptoss", "channels", "<|channel|>analysis<|message|>", ("<|return|>", "<|call|>")),
    ("gemma4_v5", "gemma", "<|channel>thought", ("<turn|>", "<|tool_response>")),
    ("mistral", "mistral", None, ("</s>",)),
    ("lfm2_v2", "pythonic", None, ("<|im_end|>",)),
]
CALLLESS = [
    ("gemma", ("<end_of_turn>",)),
    ("phi3", ("<|end|>",)),
    ("llama3", ("<|eot_id|>",)),
    ("deepseek_r1_distill", (EOS,)),
]


@pytest.mark.parametrize(("name", "calls", "opening", "ends"), FAMILIES, ids=[family[0] for family in FAMILIES])
def test_a_family_is_detected_and_passes_the_round_trip(
    name: str, calls: str, opening: str | None, ends: tuple[str, ...]
) -> None:
    tokenizer = tokenizer_of(name)
    form = find_format(tokenizer)
    assert (form.name, form.tags and form.tags.opening, form.ends) == (calls, opening, ends)
    check_round_trip(tokenizer, ALL)


@pytest.mark.parametrize(("name", "ends"), CALLLESS, ids=[family[0] for family in CALLLESS])
def test_a_family_without_calls_is_refused_with_tools(name: str, ends: tuple[str, ...]) -> None:
    tokenizer = tokenizer_of(name)
    assert find_format(tokenizer).ends == ends
    check_round_trip(tokenizer, TEXT)
    with refuses("model.chat_template"):
        check_round_trip(tokenizer, ALL)


def test_a_template_that_drops_tools_is_refused() -> None:
    tokenizer = tokenizer_of("deepseekv3")
    assert find_format(tokenizer).name == "deepseek"
    check_round_trip(tokenizer, TEXT)
    with pytest.raises(ValueError, match="kind 'tools'"):
        check_round_trip(tokenizer, ALL)


def test_calls_that_no_format_reads_are_shown_in_the_refusal() -> None:
    other = byte_tokenizer()
    other.chat_template = str(other.chat_template).replace("<tool_call>{", "<ask>{").replace("}</tool_call>", "}</ask>")
    with refuses("'<ask>"):
        check_round_trip(other, ALL)


def test_the_fresh_model_has_our_own_format() -> None:
    form = find_format(byte_tokenizer())
    assert (form.name, form.tags, form.closing, form.ends) == ("json", OWN_TAGS, "\n</think>\n", ("<|im_end|>",))
    assert check_round_trip(byte_tokenizer(), Needs(tools=True, system=True, no_thinking=True)) == []


@pytest.mark.parametrize(
    "text",
    [
        'x<tool_call>\n{"name": "get",\n "arguments": {"key": "ann"}}\n</tool_call>\n<tool_call>{"name":"calc"}</tool_call>',
        "<tool_call>{broken</tool_call>",
        '<tool_call>{"name": "get"}',
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "get", "arguments": 3}</tool_call>',
        '<tool_call>{"name": "a"<tool_call>{"name": "b"}</tool_call>',
        'x<tool_call>{"name": "get", "arguments": {"key": "</tool_call> 4 <tool_call>"}}</tool_call>',
        "plain",
    ],
)
def test_the_default_format_needs_no_tokenizer(text: str) -> None:
    (syntax,) = (one for one in CALL_SYNTAXES if one.name == "json")
    calls, said = syntax.read(text, ())
    assert list(calls) == parse_calls(text)
    assert answer_text(said) == parse_turn(text, thinks=False).content


MALFORMED = [
    ("json", '<tool_call>{"name": "get"', "not closed"),
    ("xml", "<tool_call>\n<function=get>\n<parameter=key>\na\n</parameter>\n</function>", "not closed"),
    ("xml", "<tool_call>\n<function=get>\n<parameter=key>\na\n</function>\n</tool_call>", "an argument"),
    ("xml", '<tool_call>{"name": "get"}</function></tool_call>', "no name"),
    ("glm", "<tool_call>get\n<arg_key>key</arg_key>\n</tool_call>", "an argument"),
    ("toolcall", '<TOOLCALL>[{"name": "get"}]</TOOLCALL>', "no arguments"),
    ("toolcall", '<TOOLCALL>{"name": "get", "arguments": {}]</TOOLCALL>', "not JSON"),
    ("toolcall", '<TOOLCALL>[{"name": "get", "arguments": {}}]', "not closed"),
    ("llama", '{"name": "get", "parameters": {"key": 1}', "not JSON"),
    ("llama", '{"name": "get", "arguments": {"key": 1}}', "no arguments"),
    ("llama", '{"name": "get", "parameters": {}}; {"name": "get", "parameters": {}}', "not JSON"),
    ("gemma", "<|tool_call>get{}<tool_call|>", "no name"),
    ("gemma", "<|tool_call>call:get{key:<tool_call|>", "not JSON"),
    ("xml", "<function=get>\n<parameter=key>\n4\n</parameter>\n</function>", "not closed"),
    ("xml", "<function=get>\n<parameter=key>\n4\n</parameter>\n</function>\n</tool_call>", "no name"),
    ("llama", '<|python_tag|>get.call(key="4")', "no name"),
    ("deepseek", "<\uff5ctool\u2581calls\u2581begin\uff5c>4", "not closed"),
    ("deepseek 3.1", "<\uff5ctool\u2581calls\u2581begin\uff5c>4", "not closed"),
    ("mistral", '[TOOL_CALLS] [{"name": "get"', "not JSON"),
    ("pythonic", "<|tool_call_start|>[get(key='a')", "not closed"),
    ("pythonic", "<|tool_call_start|>get(key='a')<|tool_call_end|>", "can't be read"),
    ("pythonic", "<|tool_call_start|>[get('a')]<|tool_call_end|>", "can't be read"),
    ("pythonic", "<|tool_call_start|>[get(key=open('x'))]<|tool_call_end|>", "can't be read"),
    ("pythonic", "<|tool_call_start|>[get(key=1, **{})]<|tool_call_end|>", "can't be read"),
    ("pythonic", "<|tool_call_start|>[get(key=" + "(" * 300 + ")]<|tool_call_end|>", "can't be read"),
]


@pytest.mark.parametrize(("name", "text", "error"), MALFORMED)
def test_an_unreadable_call_is_a_bad_call(name: str, text: str, error: str) -> None:
    (syntax,) = (one for one in CALL_SYNTAXES if one.name == name)
    calls, said = syntax.read(text, GET)
    assert len(calls) == 1
    assert said == ""
    assert isinstance(calls[0], BadCall)
    assert error in calls[0].error


def test_pythonic_calls_have_literals_and_the_words_of_json() -> None:
    (syntax,) = (one for one in CALL_SYNTAXES if one.name == "pythonic")
    text = """<|tool_call_start|>[get(key="it's", n=-1.5, on=true), a.b(x=[None, {'y': False}])]<|tool_call_end|> so"""
    calls, said = syntax.read(text, ())
    assert calls == (
        Call(name="get", arguments={"key": "it's", "n": -1.5, "on": True}),
        Call(name="a.b", arguments={"x": [None, {"y": False}]}),
    )
    assert said == " so"


def test_untyped_arguments_get_the_schemas_types() -> None:
    (xml,) = (one for one in CALL_SYNTAXES if one.name == "xml")
    text = (
        "<tool_call>\n<function=get>\n<parameter=key>\n75001\n</parameter>\n<parameter=n>\n7\n</parameter>\n"
        "<parameter=on>\nTrue\n</parameter>\n</function>\n</tool_call>"
    )
    assert xml.read(text, GET)[0] == (Call(name="get", arguments={"key": "75001", "n": 7, "on": True}),)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "string"}, "7"),
        ("7", {"type": "integer"}, 7),
        ("seven", {"type": "integer"}, "seven"),
        ("1e3", {"type": "number"}, 1000.0),
        ("nan", {"type": "number"}, "nan"),
        ("None", {"type": ["string", "null"]}, "None"),
        ("None", {"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ('["a"]', {"type": "array"}, ["a"]),
        ("false", {}, False),
        ("[1", None, "[1"),
        ("9" * 4301, {"type": "integer"}, "9" * 4301),
        ("9" * 4301, {"type": "number"}, "9" * 4301),
        ("\u0667", {"type": ["integer", "number"]}, "\u0667"),
    ],
)
def test_a_text_is_the_first_type_of_its_schema_that_it_can_be(text: str, schema: Any, value: Any) -> None:
    assert parse_value(text, schema) == value


def test_a_bare_call_is_one_only_where_tools_are_offered() -> None:
    renderer = Renderer(tokenizer_of("llama3_1"))
    text = '{"name": "Bob", "age": 7}'
    assert renderer.format.parse(text, thinks=True).calls == ()
    assert len(renderer.format.parse(text, thinks=True, tools=GET).calls) == 1


@pytest.mark.parametrize(("usual", "said"), [("true", ("", "/no_think")), ("false", ("/think", ""))])
def test_a_system_text_sets_the_mode_without_variables(usual: str, said: tuple[str, str]) -> None:
    template = NEMOTRON_NANO_V2.replace("namespace(thinks=true)", f"namespace(thinks={usual})")
    tokenizer = tokenizer_of("nemotron_nano_v2", template)
    renderer, tags = Renderer(tokenizer), ThinkingTags(tokenizer)
    assert (renderer.format.think, renderer.format.no_think) == said
    assert tags.is_opened_by_prompt
    renderer.check_modes()
    for thinking, opening in ((UNLIMITED, "<think>\n"), (OFF, "<think></think>")):
        for first in ([], [{"role": "system", "content": "Be brief."}]):
            task = Task(messages=(*first, {"role": "user", "content": "-"}), spec={}, thinking=thinking)
            prompt = renderer.decode(renderer.prompt_ids(task))
            assert prompt.endswith(f"<SPECIAL_11>Assistant\n{opening}")
            assert ("Be brief." in prompt, "think" in prompt.removesuffix(opening)) == (bool(first), False)
    check_round_trip(tokenizer, Needs(tools=True, system=True, no_thinking=True))


def test_a_model_with_its_own_opening_may_not_think() -> None:
    renderer = Renderer(tokenizer_of("qwen3"))
    direct = renderer.format.parse("17", thinks=True, opened=False)
    assert (direct.reasoning, direct.answer, direct.readable, direct.well_formed) == ("", "17", True, True)
    cut = renderer.format.parse("<think>17", thinks=True, opened=False)
    assert (cut.readable, cut.answer) == (False, "")
    assert not renderer.format.parse("17", thinks=True, opened=True).readable


def test_a_model_without_tags_has_answers_alone_in_either_mode() -> None:
    form = find_format(tokenizer_of("llama3_1"))
    for thinks in (True, False):
        parsed = form.parse("so </think> 17", thinks=thinks)
        assert (parsed.reasoning, parsed.answer, parsed.well_formed) == (None, "so </think> 17", True)
    assert ThinkingTags.find(tokenizer_of("llama3_1")) is None


CHANNELS = [
    (
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>17",
        ("so", "17", True, True),
    ),
    ("<|channel|>final<|message|>17", ("", "17", True, True)),
    ("<|channel|>analysis<|message|>so", ("so", "", False, False)),
    ("17", ("", "", False, False)),
    (
        "<|channel|>analysis<|message|>a<|end|><|channel|>analysis<|message|>b<|end|><|channel|>final<|message|>1",
        ("a\nb", "1", True, False),
    ),
    ("<|channel|>final<|message|>1<|start|>assistant<|channel|>final<|message|>2", ("", "", False, False)),
]


@pytest.mark.parametrize(("text", "expected"), CHANNELS)
def test_channels_are_told_apart(text: str, expected: tuple[str, str, bool, bool]) -> None:
    parsed = find_format(tokenizer_of("gptoss")).parse(text, thinks=True)
    assert (parsed.reasoning, parsed.answer, parsed.readable, parsed.well_formed) == expected


@pytest.mark.parametrize(
    "text",
    [
        ' to=functions.get<|channel|>commentary json<|message|>{"key": "a"}',
        '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"key": "a"}',
    ],
)
def test_a_channel_call_names_its_tool_on_either_side(text: str) -> None:
    parsed = find_format(tokenizer_of("gptoss")).parse(text, thinks=True)
    assert parsed.calls == (Call(name="get", arguments={"key": "a"}),)
    assert (parsed.content, parsed.readable) == ("", True)


def test_the_answers_of_tools_name_the_calls_of_the_turn_before() -> None:
    renderer = Renderer(tokenizer_of("gptoss"))
    ids = renderer.observation_ids(
        [{"role": "tool", "content": "17"}], thinks=True, calls=[Call(name="get", arguments={})]
    )
    assert renderer.decode(ids).startswith("<|start|>functions.get to=assistant")
    named = Renderer(tokenizer_of("mistral"))
    call = Call(name="get", arguments={}, id="abcdefghi")
    ids = named.observation_ids([{"role": "tool", "content": "17"}], thinks=True, calls=[call])
    assert '"call_id": "abcdefghi"' in named.decode(ids)


def test_another_parts_end_does_not_replace_the_turns() -> None:
    renderer = Renderer(tokenizer_of("glm4moe"))
    user, observation = renderer.format.end_ids[:2]
    said = renderer.observation_ids([{"role": "user", "content": "go on"}], thinks=True, after=[user])
    other = renderer.observation_ids([{"role": "user", "content": "go on"}], thinks=True, after=[observation])
    assert renderer.decode(said).startswith("\ngo on")
    assert other == (user, *said)


@pytest.mark.parametrize("name", ["qwen3", "gptoss", "gemma4_v5", "glm4moe", "nemotron_nano_v2"])
def test_a_budget_closes_a_thought_in_the_tags_of_its_family(name: str) -> None:
    tokenizer = tokenizer_of(name)
    tags, renderer = ThinkingTags(tokenizer), Renderer(tokenizer)
    text = renderer.answer_text({"role": "assistant", "content": "17", "reasoning_content": "x" * 40}, thinks=True)
    ids = renderer.encode(text)
    begin, end = tags.thinking_start(ids), tags.close_of(ids)
    assert begin is not None
    assert end is not None
    for budget in (0, 1, 3, 30):
        close = tags.forced_end(ids[: end[0]], ThinkingLimit(tokens=budget))
        assert close is not None
        assert close.start == begin + budget
        assert tags.tags.closing in renderer.decode(close.ids)
    assert tags.measure(ids, thinks=True).tokens == end[0] - begin
    direct = tags.measure(renderer.encode("17"), thinks=True, opened=False)
    assert (direct.tokens, direct.answer_tokens) == (0, 2)


@pytest.mark.parametrize("name", ["json", "toolcall", "mistral", "mistral args", "deepseek", "deepseek 3.1"])
def test_an_argument_may_mention_the_marks_of_calls(name: str) -> None:
    (syntax,) = (one for one in CALL_SYNTAXES if one.name == name)
    bar, low = "\uff5c", "\u2581"
    opening, body, closing = {
        "json": ("<tool_call>", '{"name": "get", "arguments": %s}', "</tool_call>"),
        "toolcall": ("<TOOLCALL>", '[{"name": "get", "arguments": %s}]', "</TOOLCALL>"),
        "mistral": ("[TOOL_CALLS]", '[{"name": "get", "arguments": %s}]', ""),
        "mistral args": ("[TOOL_CALLS]", "get[ARGS]%s", ""),
        "deepseek": (
            f"<{bar}tool{low}call{low}begin{bar}>",
            f"function<{bar}tool{low}sep{bar}>get\n```json\n%s",
            f"\n```<{bar}tool{low}call{low}end{bar}>",
        ),
        "deepseek 3.1": (
            f"<{bar}tool{low}call{low}begin{bar}>",
            f"get<{bar}tool{low}sep{bar}>%s",
            f"<{bar}tool{low}call{low}end{bar}>",
        ),
    }[name]
    for key in (opening, closing, f"{opening}{closing}{opening}"):
        arguments = json.dumps({"key": f"write {key} to a file"}, ensure_ascii=False)
        whole = opening + body % arguments + closing
        calls, said = syntax.read("so: " + whole, GET)
        assert calls == (Call(name="get", arguments=json.loads(arguments)),)
        assert said.strip() == "so:"
    broken = opening + (body % '{"key": "a}') + closing
    assert not any(isinstance(call, Call) for call in syntax.read(broken, GET)[0])
