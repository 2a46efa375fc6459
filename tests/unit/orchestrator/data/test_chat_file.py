"""Rows of a chat file: what is trained on stays as it is, and what can't be is named with its line or counted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.envs.core.thinking_mode import OFF, UNLIMITED, ThinkingMix
from temper.envs.data.blocks import BLOCK, Blocks
from temper.envs.data.config import DataConfig, OnError
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.data.chat_data import Dialogue, DialogueTokenizer
from temper.orchestrator.data.chat_file import ChatFile, parse_chat
from temper.orchestrator.data.row_intake import RowIntake, counts_text
from temper.orchestrator.data.sft import SftData, SftDataConfig
from temper.orchestrator.pipeline.config import Config, load_config
from temper.orchestrator.stages.sft import SftConfig
from temper.rollout.budget.config import ThoughtConfig

TOKENIZER = byte_tokenizer()
TOKENS = DialogueTokenizer.of(TOKENIZER, ThoughtConfig())
ASKED = {"role": "user", "content": "6*7=?"}
SAID = {"role": "assistant", "content": "42"}
ROW: dict[str, Any] = {"messages": [ASKED, SAID]}
CALL = {"type": "function", "function": {"name": "get", "arguments": {"key": "a"}}}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"properties": {"key": {"type": "string"}}}}}


def saved(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def chats(path: Path, *, on_error: OnError = "raise", max_tokens: int | None = None) -> ChatFile:
    return ChatFile(
        DataConfig(path=str(path)),
        RowIntake(TOKENS, max_tokens=max_tokens, setting="sft.max_tokens"),
        on_error=on_error,
        seed=1,
    )


def text(dialogue: Dialogue) -> str:
    return TOKENIZER.decode(TOKENS.sample(dialogue).ids)


def said(*messages: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"messages": [ASKED, *messages], **others}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": None}, "`messages` must be a list of objects"),
        ({"messages": [ASKED]}, "needs an assistant's message after the prompt; its roles are \\['user'\\]"),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "roles are \\['system'\\]"),
        ({"conversations": [{"from": "human", "value": "?"}]}, "`messages` must be a list.*not None"),
        ({"messages": [{"role": "human", "content": "?"}, SAID]}, "the role 'human'; the roles are system, user"),
        (said({"role": "assistant", "content": ""}), "an assistant's message says nothing"),
        (said({"role": "assistant", "content": "<think>so</think>"}), "an assistant's message says nothing"),
        (said({"role": "assistant", "content": [{"type": "text", "text": "42"}]}), "`content` must be text, not \\[{"),
        (said({"role": "assistant", "content": None}), "`content` must be text, not None"),
        (
            said({"role": "assistant", "content": "<think>so 42"}),
            "must be opened and closed once, unlike in '<think>so",
        ),
        (said(SAID | {"reasoning_content": "a</think>b"}), "must be opened and closed once, unlike in 'a</think>b'"),
        (
            said(SAID | {"reasoning": "so"}),
            "`reasoning` of a message would be left out; a thought is `reasoning_content`",
        ),
        (said(SAID | {"function_call": {"name": "get"}}), "`function_call` of a message would be left out"),
        (said(SAID | {"weight": 0}), "the weight 0, but every answer"),
        (said(SAID | {"tool_calls": [{"name": "get"}]}), "a tool call must have `function`"),
        (
            said(SAID | {"tool_calls": [{"function": {"name": "get", "arguments": "a"}}]}),
            "the arguments of a tool call must be an object, not 'a'",
        ),
        (said(SAID, tools="get"), "`tools` must be a list of objects"),
        (said(SAID, reasoning_effort="lo"), "`reasoning_effort` is 'lo'"),
        (said(SAID | {"reasoning_content": "so"}, SAID), "is its thought missing"),
        (said({"role": "assistant", "content": "x" * 500}), "the row has 516 tokens, more than sft.max_tokens=300"),
    ],
)
def test_a_row_that_can_not_be_trained_on_is_named_with_file_and_line_or_counted(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    path = saved(tmp_path / "chats.jsonl", ROW, row)
    with pytest.raises(ValueError, match=f"(?s)chats.jsonl:2: .*{reason}.*on_error=skip"):
        chats(path, max_tokens=300)
    skipped = "longer than 300 tokens and skipped" if "more than" in reason else "malformed and skipped"
    assert chats(path, on_error="skip", max_tokens=300).counts == {"rows": 1, skipped: 1}


def test_what_is_remarkable_about_rows_is_counted(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "chats.jsonl",
        ROW,
        ROW,
        said(SAID, ASKED),
        {"messages": [SAID, ASKED, SAID]},
        said({"role": "assistant", "content": "<|im_end|>"}),
    )
    file = chats(path)
    assert counts_text(file.counts) == (
        "5 rows, 1 repeat an earlier row, 1 end with messages that nothing answers, which are left out, "
        "1 begin with an answer, which is not trained, "
        "1 contain tags of the chat template, each broken by a zero-width space"
    )


def test_separators_of_unicode_a_mark_of_byte_order_and_a_line_of_300_mb_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    answer = "one\u2028two\x85three\u2029"
    good = json.dumps(said({"role": "assistant", "content": answer}), ensure_ascii=False).encode()
    with path.open("wb") as file:
        file.write(b"\xef\xbb\xbf" + good + b"\r\n\n")
        file.write(b'{"messages": "' + b"x" * 300_000_000 + b'"}\n')
        file.write(good[:-1] + b', "id": 2}\n')
        file.write(json.dumps(said({"role": "assistant", "content": "\ud800"})).encode() + b"\n")
    read = chats(path, on_error="skip")
    assert read.counts == {"rows": 2, "malformed and skipped": 2}
    assert answer in text(read.dialogue(0))
    with pytest.raises(ValueError, match="chats.jsonl:3"):
        chats(path)


def test_a_thought_in_the_text_of_an_answer_is_its_thought() -> None:
    inline = parse_chat(said({"role": "assistant", "content": "<think>\nsix sevens\n</think>\n\n  42"}), 0)
    apart = parse_chat(said({"role": "assistant", "reasoning_content": "six sevens", "content": "  42"}), 0)
    assert text(inline) == text(apart)
    assert inline.task.thinking == UNLIMITED
    unknown = parse_chat(said({"role": "assistant", "content": "<think>so</think>42"}), 0, thoughts=False)
    assert unknown.reply[0]["content"] == "<think>so</think>42"
    assert unknown.task.thinking == OFF
    with pytest.raises(ValueError, match="'so'"):
        parse_chat(said(SAID | {"reasoning_content": "so"}), 0, thoughts=False)


def test_calls_and_tools_that_other_formats_write_as_text_are_read() -> None:
    function = {"name": "get", "arguments": '{"key": "a"}'}
    asks: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL | {"function": function}]}
    answered = [{"role": "tool", "content": ""}, SAID]
    written = parse_chat(said(asks, *answered, tools=json.dumps([TOOL])), 0)
    plain = parse_chat(said(asks | {"content": "", "tool_calls": [CALL]}, *answered, tools=[TOOL]), 0)
    assert text(written) == text(plain)
    assert '<tool_call>{"name":"get","arguments":{"key": "a"}}</tool_call><|im_end|>' in text(plain)


def test_a_template_that_refuses_a_row_is_named_with_the_line(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    template = str(tokenizer.chat_template)
    tokenizer.chat_template = (
        "{% if messages[1] and messages[1].role == 'user' %}{{ raise_exception('turns!') }}{% endif %}"
    )
    tokenizer.chat_template += template
    intake = RowIntake(DialogueTokenizer.of(tokenizer, ThoughtConfig()), max_tokens=None, setting="sft.max_tokens")
    with pytest.raises(ValueError, match="chats.jsonl:2: .*'user', 'user'.*turns!"):
        ChatFile(
            DataConfig(path=str(saved(tmp_path / "chats.jsonl", ROW, said(ASKED, SAID)))),
            intake,
            on_error="raise",
            seed=1,
        )


def test_streamed_rows_are_read_as_they_are_needed_and_a_stage_that_goes_on_sees_the_same(tmp_path: Path) -> None:
    numbers = [{"messages": [ASKED, {**SAID, "content": str(number)}]} for number in range(BLOCK + 5)]
    bad = {"messages": [ASKED]}
    data = DataConfig(path=str(saved(tmp_path / "chats.jsonl", *numbers, bad)), streaming=True)

    def streamed(on_error: OnError) -> ChatFile:
        return ChatFile(data, RowIntake(TOKENS, max_tokens=None, setting="sft.max_tokens"), on_error=on_error, seed=1)

    rows = streamed("skip")
    assert rows.counts == {}
    order = [str(rows.dialogue(index).reply[0]["content"]) for index in range(2 * len(numbers))]
    once, again = order[: len(numbers)], order[len(numbers) :]
    every = {str(number) for number in range(len(numbers))}
    assert set(once) == set(again) == every
    assert set(once[:BLOCK]) == {str(number) for number in range(BLOCK)}
    assert once != again
    assert [streamed("skip").dialogue(index).reply[0]["content"] for index in (BLOCK + 2, BLOCK + 9)] == [
        order[BLOCK + 2],
        order[BLOCK + 9],
    ]
    with pytest.raises(ValueError, match=f"chats.jsonl:{BLOCK + 6}: "):
        streamed("raise").dialogue(BLOCK)  # the first block is whole


def test_rows_that_could_not_be_read_once_are_read_again() -> None:
    faults = [OSError("gone")]

    def read() -> Iterator[int]:
        for number in range(2 * BLOCK):
            if number == BLOCK + 7 and faults:
                raise faults.pop()
            yield number

    blocks = Blocks(read, seed=None)
    with pytest.raises(OSError, match="gone"):
        blocks.item(BLOCK + 9)
    assert [blocks.item(index) for index in (BLOCK + 9, 3, 2 * BLOCK - 1)] == [BLOCK + 9, 3, 2 * BLOCK - 1]


def test_what_the_template_would_leave_out_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages if m.role in ('user', 'assistant') %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    plain = DialogueTokenizer.of(tokenizer, ThoughtConfig())
    asks = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    rows = {
        "tool, tool_calls, tools": said(asks, {"role": "tool", "content": "17"}, SAID, tools=[TOOL]),
        "system": {"messages": [{"role": "system", "content": "Be brief."}, ASKED, SAID]},
    }
    for parts, row in rows.items():
        path = saved(tmp_path / "chats.jsonl", ROW, row)
        with pytest.raises(ValueError, match=f"chats.jsonl:2: .*{parts}"):
            ChatFile(
                DataConfig(path=str(path)),
                RowIntake(plain, max_tokens=None, setting="sft.max_tokens"),
                on_error="raise",
                seed=1,
            )
        assert chats(path).counts == {"rows": 2}  # the template of the fresh model knows them all


def test_rows_of_a_user_are_altered_only_where_that_is_asked_for(tmp_path: Path) -> None:
    row = said({"role": "assistant", "reasoning_content": "six sevens", "content": "42"})
    file = chats(saved(tmp_path / "chats.jsonl", row))

    def batch(config: SftConfig) -> set[str]:
        data = SftData(
            file.dialogue,
            TOKENS,
            config.modes(left_out=True),
            batch_size=200,
            max_tokens=None,
            on_error="raise",
            seed=1,
        ).batch(1)
        return {TOKENIZER.decode(sequence.ids) for sequence in data}

    assert batch(SftConfig(data=DataConfig(path="chats.jsonl"))) == {text(parse_chat(row, 0))}
    asked = SftDataConfig(thinking=ThinkingMix(no_thought=0.5))
    assert len(batch(SftConfig(data=DataConfig(path="chats.jsonl"), thoughts=asked))) == 2
    assert SftConfig().modes(left_out=True).thinking == ThinkingMix(budget=0.03, no_thought=0.1)
    assert SftConfig().modes(left_out=False).thinking == ThinkingMix(budget=0.03)


def test_modes_are_read_from_a_configuration_that_names_some_and_a_limit_must_be_one() -> None:
    demo = Path("configs/demo.yaml")
    named: Config = load_config(demo, ["sft.data=x.jsonl", "sft.thoughts.thinking={no_thought: 0.2}"])
    assert named.section(SftConfig).modes(left_out=False).thinking == ThinkingMix(budget=0.45, no_thought=0.2)
    for stage in ("sft", "self_sft", "dpo"):
        with pytest.raises(ValueError, match=f"{stage}.max_tokens=0"):
            load_config(demo, [f"{stage}.max_tokens=0"])
