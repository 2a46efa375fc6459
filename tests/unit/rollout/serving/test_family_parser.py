"""The parser of served answers of each family, and vLLM's parsers for it."""

import json
from typing import Any

import pytest
from support.model_families import tokenizer_of

from temper.rollout.engines.vllm_settings import prepare_environment

prepare_environment()
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.reasoning import ReasoningParserManager  # noqa: E402
from vllm.tool_parsers import ToolParserManager  # noqa: E402

from temper.rollout.episodes.renderer import Renderer  # noqa: E402
from temper.rollout.formats.find import find_format  # noqa: E402
from temper.rollout.formats.messages import PROBE_TOOLS, probe_message  # noqa: E402
from temper.rollout.serving.family_parser import FAMILY, tool_parser  # noqa: E402
from temper.rollout.serving.thought_parser import reasoning_parser  # noqa: E402

CALLING = ("qwen3", "nemotron_nano_v2", "nemotron_3_nano", "glm4moe", "gemma4_v5", "llama3_1", "mistral", "qwen2_5")


def request(**said: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "-"}], tools=[*PROBE_TOOLS], **said)


def parser_of(name: str) -> Any:
    tokenizer = tokenizer_of(name)
    assert tool_parser(find_format(tokenizer)) == FAMILY
    return ToolParserManager.get_tool_parser(FAMILY)(tokenizer, request().tools)


def reference(name: str) -> str:
    renderer = Renderer(tokenizer_of(name))
    text = renderer.answer_text(probe_message(2 if renderer.format.parallel else 1), thinks=False)
    return renderer.text(renderer.encode(text))


@pytest.mark.parametrize("name", CALLING)
def test_the_calls_of_a_family_are_read_whole_and_in_a_stream(name: str) -> None:
    text = reference(name)
    whole = parser_of(name).extract_tool_calls(text, request())
    wanted = [(call.function.name, call.function.arguments) for call in whole.tool_calls]
    assert (whole.tools_called, wanted[0][0]) == (True, "probe_first")
    assert json.loads(wanted[0][1]) == {"text": "temper-mark", "count": 7}
    assert not (whole.content or "").strip()
    calls, said = streamed(name, text)
    assert [(call.index, call.function.name, call.function.arguments) for call in calls] == [
        (number, *call) for number, call in enumerate(wanted)
    ]
    assert said == (whole.content or "")


def streamed(name: str, text: str) -> tuple[list[Any], str]:
    """The calls and the text of a stream of single characters."""
    parser, deltas = parser_of(name), []
    for end in range(1, len(text) + 1):
        deltas.append(parser.extract_tool_calls_streaming("", text[:end], text[end - 1 : end], [], [], [], request()))
    assert parser.engine_based_streaming  # vLLM calls the next method of such parsers alone
    given = [delta for delta in (*deltas, parser.finish_streaming()) if delta is not None]
    return [call for delta in given for call in delta.tool_calls or ()], "".join(delta.content or "" for delta in given)


@pytest.mark.parametrize("name", CALLING)
def test_text_without_calls_is_streamed_as_it_comes(name: str) -> None:
    parser, text = parser_of(name), "a < b, [1] and <tool"
    early = parser.extract_tool_calls_streaming("", text, text, [], [], [], request()).content
    assert text.startswith(early)
    assert early.startswith("a < b, [1] and")
    assert streamed(name, text) == ([], text)


@pytest.mark.parametrize(
    "broken",
    ['x <tool_call>{"name": 3}</tool_call>', 'x <tool_call>{"name"', "{}<tool_call>{oops</tool_call> y"],
)
def test_a_call_that_can_not_be_read_stays_in_the_text(broken: str) -> None:
    text = broken.replace("{}", reference("qwen3"))
    read = parser_of("qwen3").extract_tool_calls(text, request())
    assert (read.tools_called, read.tool_calls, read.content) == (False, [], text)
    assert streamed("qwen3", text) == ([], text)


@pytest.mark.parametrize("name", ["qwen3", "gemma4_v5"])
def test_a_call_inside_of_a_thought_is_a_part_of_it(name: str) -> None:
    tokenizer, call = tokenizer_of(name), reference(name)
    form = find_format(tokenizer)
    parser = ReasoningParserManager.get_reasoning_parser(reasoning_parser(form))(tokenizer)
    assert form.tags is not None
    text = f"{form.tags.opening}\nso {call} \n{form.tags.closing}yes"
    thought, answer = parser.extract_reasoning(text, request())
    assert ((thought or "").strip(), answer) == (f"so {call}", "yes")


def test_marks_of_calls_are_kept_with_tools() -> None:
    assert not parser_of("gemma4_v5").adjust_request(request()).skip_special_tokens
    assert parser_of("gemma4_v5").adjust_request(request(tool_choice="none")).skip_special_tokens


@pytest.mark.parametrize(
    ("name", "thoughts", "calls"),
    [
        ("nemotron_nano_v2", "closed_qwen3", FAMILY),
        ("gemma4_v5", "closed_gemma4", FAMILY),
        ("gptoss", "openai_gptoss", "openai"),
        ("llama3_1", "", FAMILY),
        ("phi3", "", ""),
    ],
)
def test_the_parsers_of_a_model_are_chosen_by_its_family(name: str, thoughts: str, calls: str) -> None:
    form = find_format(tokenizer_of(name))
    assert (reasoning_parser(form), tool_parser(form)) == (thoughts, calls)
    for known, manager in (
        (thoughts, ReasoningParserManager.get_reasoning_parser),
        (calls, ToolParserManager.get_tool_parser),
    ):
        assert not known or manager(known) is not None
