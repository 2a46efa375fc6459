"""Rows of a chat file: trained text stays unchanged. Errors name the line, and skipped rows are counted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.model_families import tokenizer_of

from temper.envs.core.thinking_mode import OFF, UNLIMITED, ThinkingMix
from temper.envs.data import jsonl
from temper.envs.data.blocks import BLOCK, Blocks
from temper.envs.data.config import DataConfig, OnError
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.config.supervised import SftConfig, SftDataConfig
from temper.orchestrator.data.chat_data import Dialogue, DialogueTokenizer
from temper.orchestrator.data.chat_file import chat_rows, parse_chat
from temper.orchestrator.data.row_intake import (
    BROKEN,
    LEFT_OPEN,
    MALFORMED,
    OPENED,
    REPEATED,
    UNREASONED,
    RowIntake,
    ShuffledRows,
    counts_text,
    too_long,
)
from temper.orchestrator.data.sft import SftData
from temper.orchestrator.pipeline.config import Config, load_config
from temper.rollout.budget.config import ThinkingConfig

TOKENIZER = byte_tokenizer()
TOKENS = DialogueTokenizer.of(TOKENIZER, ThinkingConfig())
ASKED = {"role": "user", "content": "6*7=?"}
SAID = {"role": "assistant", "content": "42"}
ROW: dict[str, Any] = {"messages": [ASKED, SAID]}
CALL = {"type": "function", "function": {"name": "get", "arguments": {"key": "a"}}}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"properties": {"key": {"type": "string"}}}}}


def saved(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def chats(
    path: Path,
    *,
    on_error: OnError = "raise",
    max_tokens: int | None = None,
    tokens: DialogueTokenizer = TOKENS,
    streaming: bool = False,
) -> ShuffledRows[Dialogue]:
    intake = RowIntake(tokens, max_tokens=max_tokens, setting="sft.max_tokens")
    return chat_rows(DataConfig(path=str(path), streaming=streaming), intake, on_error=on_error, seed=1)


def text(dialogue: Dialogue) -> str:
    return TOKENIZER.decode(TOKENS.sample(dialogue).ids)


def said(*messages: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"messages": [ASKED, *messages], **others}


def call(**function: Any) -> dict[str, Any]:
    return SAID | {"tool_calls": [function]}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"messages": None}, "`messages`"),
        ({"messages": [ASKED]}, r"\['user'\]"),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, r"\['system'\]"),
        ({"conversations": [{"from": "human", "value": "?"}]}, r"\['user'\]"),
        ({"instruction": "Q", "input": "", "output": "A"}, "columns: {prompt: instruction, completion: output}"),
        ({"chat": [ASKED, SAID]}, "columns: {messages: chat}"),
        ({"prompt": "Q", "chosen": "A", "rejected": "B"}, "dpo"),
        ({"prompt": "Q", "completion": "A", "label": False}, "`label`"),
        ({"prompt": "Q", "completion": "A", "input": "x"}, "`input`"),
        ({"messages": [{"role": "moderator", "content": "?"}, SAID]}, "'moderator'"),
        (said(SAID | {"content": ""}), "assistant"),
        (said(SAID | {"content": "<think>so</think>"}), "assistant"),
        (said(SAID | {"content": [{"type": "image_url", "image_url": "a.png"}]}), "image_url"),
        (said(SAID | {"content": 4}), "`content`.*4"),
        (said(SAID | {"content": None}), "`content`.*null"),
        (said(SAID | {"content": "<think>so 42"}), "<think>so"),
        (said(SAID | {"reasoning_content": "a</think>b"}), "a</think>b"),
        (said(SAID | {"reasoning": "so"}), "`reasoning`.*`reasoning_content`"),
        (said(SAID | {"function_call": {"name": "get"}}), "`function_call`"),
        (said(SAID | {"weight": 0.5}), "`weight`: 0.5"),
        (said(SAID | {"weight": 0}), "`weight`"),
        (said(SAID | {"train": False, "loss": True}), "train.: false, .loss.: true"),
        (said(ASKED | {"train": True}, SAID), "'user'"),
        (said(SAID | {"images": ["a.png"]}), "`images`"),
        (said(SAID, image="a.png"), "`image`"),
        (said(SAID, videos=["a.mp4"]), "`videos`"),
        (said(SAID, weight=0.5), "`weight`"),
        (said(SAID, documents=[{"text": "x"}]), "`documents`"),
        (said(SAID, tool_choice="required"), "`tool_choice`"),
        (said(SAID, train_on_input=True), "`train_on_input`"),
        (said(SAID, mask="User"), "`mask`"),
        (said(SAID, functions=[{"name": "get"}]), "`functions`"),
        (said(SAID, chat_template_kwargs={"enable_thinking": True}), "enable_thinking"),
        (said(SAID, chat_template_kwargs={"style": "x"}), "style"),
        (said(SAID, chat_template_kwargs="{"), "`chat_template_kwargs`"),
        ({"messages": [{"role": "system", "content": "A"}, ASKED, SAID], "system": "B"}, "`system`.*.B.*.A"),
        (said(call(name="get")), "`function`"),
        (said(call(function={"name": "get", "arguments": "a"})), "arguments.*.a"),
        (said(SAID, tools="get"), "`tools`"),
        (said(SAID, reasoning_effort="lo"), "`reasoning_effort`.*lo"),
        ({"messages": [ASKED | {"value": "Other?"}, SAID]}, "`value`"),
        ({"messages": [ASKED | {"from": "gpt"}, SAID]}, "`from`"),
        (said(SAID | {"weight": float("nan")}), "`messages`"),
        (said({"role": "assistant", "content": None, "function_call": {"name": "f"}}), "tool_calls"),
        (said({"role": "assistant", "content": None, "refusal": "No."}), "refusal"),
        ({"prompt": "Q", "completion": "A", "label": "False"}, "label"),
        (said(SAID | {"content": "x" * 500}), "516 tokens, more than sft.max_tokens=300"),
    ],
)
def test_a_row_that_can_not_be_trained_on_is_named_with_file_and_line_or_counted(
    tmp_path: Path, row: dict[str, Any], named: str
) -> None:
    path = saved(tmp_path / "chats.jsonl", ROW, row)
    with pytest.raises(ValueError, match=f"(?s)chats.jsonl:2: .*{named}.*on_error=skip"):
        chats(path, max_tokens=300)
    skipped = too_long(300) if "more than" in named else MALFORMED
    assert chats(path, on_error="skip", max_tokens=300).counts == {"rows": 1, skipped: 1}


def test_what_is_remarkable_about_rows_is_counted(tmp_path: Path) -> None:
    odd = (said(SAID, ASKED), {"messages": [SAID, ASKED, SAID]}, said(SAID | {"content": "<|im_end|>"}))
    file = chats(saved(tmp_path / "chats.jsonl", ROW, ROW, *odd))
    assert file.counts == {"rows": 5, REPEATED: 1, LEFT_OPEN: 1, OPENED: 1, BROKEN: 1}
    assert "True" not in counts_text(file.counts)


THOUGHT = SAID | {"reasoning_content": "six sevens"}
BLANK = SAID | {"content": "forty-two", "reasoning_content": " "}


@pytest.mark.parametrize("family", ["ours", "nemotron_nano_v2", "deepseek_v3_1", "qwen3", "gptoss"])
def test_turns_without_reasoning_are_context_of_those_with_it(tmp_path: Path, family: str) -> None:
    tokenizer = TOKENIZER if family == "ours" else tokenizer_of(family)
    tokens = DialogueTokenizer.of(tokenizer, ThinkingConfig())
    rows = (said(BLANK, ASKED, BLANK, ASKED, THOUGHT), said(THOUGHT, ASKED, BLANK), said(BLANK))
    read = chats(saved(tmp_path / "chats.jsonl", *rows), tokens=tokens)
    assert read.counts == {"rows": 3, UNREASONED: 3}
    for row, answers in zip(rows, (3, 2, 1), strict=True):
        sample = tokens.sample(parse_chat(row, 0))
        trained = [number for number, own in zip(sample.ids, sample.trained_T, strict=True) if own]
        whole, own = tokenizer.decode(sample.ids), tokenizer.decode(trained)
        assert whole.count("42") + whole.count("forty-two") == answers
        assert (own.count("six sevens"), own.count("forty-two")) == ((0, 1) if answers == 1 else (1, 0))


def test_a_row_of_which_nothing_is_trained_is_refused(tmp_path: Path) -> None:
    row = said(THOUGHT | {"train": False}, ASKED, SAID)
    with pytest.raises(ValueError, match="turns without reasoning"):
        chats(saved(tmp_path / "chats.jsonl", row))
    row |= {"chat_template_kwargs": {"enable_thinking": False}}
    assert trained(row) == "42<|im_end|>"


def test_separators_of_unicode_a_mark_of_byte_order_and_a_line_over_the_limit_are_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1_000_000)
    path = tmp_path / "chats.jsonl"
    answer = "one\u2028two\x85three\u2029"
    good = json.dumps(said({"role": "assistant", "content": answer}), ensure_ascii=False).encode()
    with path.open("wb") as file:
        file.write(b"\xef\xbb\xbf" + good + b"\r\n\n")
        file.write(b'{"messages": "' + b"x" * 3_000_000 + b'"}\n')
        file.write(good[:-1] + b', "id": 2}\n')
        file.write(json.dumps(said({"role": "assistant", "content": "\ud800"})).encode() + b"\n")
    read = chats(path, on_error="skip")
    assert read.counts == {"rows": 2, "malformed and skipped": 2}
    assert answer in text(read.item(0))
    with pytest.raises(ValueError, match="chats.jsonl:3"):
        chats(path)


def test_a_thought_in_the_text_of_an_answer_is_its_thought() -> None:
    inline = parse_chat(said({"role": "assistant", "content": "<think>\nsix sevens\n</think>\n\n  42"}), 0)
    apart = parse_chat(said({"role": "assistant", "reasoning_content": "six sevens", "content": "  42"}), 0)
    assert text(inline) == text(apart)
    assert inline.task.thinking == UNLIMITED
    unknown = parse_chat(said({"role": "assistant", "content": "<think>so</think>42"}), 0, reads_reasoning=False)
    assert unknown.reply[0]["content"] == "<think>so</think>42"
    assert unknown.task.thinking == OFF
    with pytest.raises(ValueError, match='"so"'):
        parse_chat(said(SAID | {"reasoning_content": "so"}), 0, reads_reasoning=False)


def test_calls_and_tools_that_other_formats_write_as_text_are_read() -> None:
    function = {"name": "get", "arguments": '{"key": "a"}'}
    asks: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL | {"function": function}]}
    answered = [{"role": "tool", "content": ""}, SAID]
    written = parse_chat(said(asks, *answered, tools=json.dumps([TOOL])), 0)
    plain = parse_chat(said(asks | {"content": "", "tool_calls": [CALL]}, *answered, tools=[TOOL]), 0)
    assert text(written) == text(plain)
    assert '<tool_call>{"name":"get","arguments":{"key": "a"}}</tool_call><|im_end|>' in text(plain)


REFUSING = "{% if messages[1] and messages[1].role == 'user' %}{{ raise_exception('turns!') }}{% endif %}"
PLAIN = (
    "{% for m in messages if m.role in ('user', 'assistant') %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "row", "named"),
    [
        (REFUSING + str(TOKENIZER.chat_template), said(ASKED, SAID), "'user', 'user'.*turns!"),
        (
            PLAIN,
            said(SAID | {"content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "17"}, SAID, tools=[TOOL]),
            "tool, tool_calls, tools",
        ),
        (PLAIN, {"messages": [{"role": "system", "content": "Be brief."}, ASKED, SAID]}, "system"),
    ],
)
def test_a_row_that_the_template_refuses_or_would_cut_is_named(
    tmp_path: Path, template: str, row: dict[str, Any], named: str
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    path = saved(tmp_path / "chats.jsonl", ROW, row)
    with pytest.raises(ValueError, match=f"chats.jsonl:2: .*{named}"):
        chats(path, tokens=DialogueTokenizer.of(tokenizer, ThinkingConfig()))
    assert chats(path).counts["rows"] == 2  # the fresh model's template renders all of them


def test_streamed_rows_are_read_as_they_are_needed_and_a_stage_that_goes_on_sees_the_same(tmp_path: Path) -> None:
    numbers = [{"messages": [ASKED, SAID | {"content": str(n)}], "source": "a"} for n in range(BLOCK + 5)]
    bad = {"messages": [ASKED]}
    path = saved(tmp_path / "chats.jsonl", *numbers, bad)

    def streamed(on_error: OnError) -> ShuffledRows[Dialogue]:
        return chats(path, on_error=on_error, streaming=True)

    rows = streamed("skip")
    assert rows.counts == {"have fields that are not read (source)": BLOCK}
    order = [str(rows.item(index).reply[0]["content"]) for index in range(2 * len(numbers))]
    once, again = order[: len(numbers)], order[len(numbers) :]
    every = {str(number) for number in range(len(numbers))}
    assert set(once) == set(again) == every
    assert set(once[:BLOCK]) == {str(number) for number in range(BLOCK)}
    assert once != again
    for index in (BLOCK + 2, BLOCK + 9):
        assert streamed("skip").item(index).reply[0]["content"] == order[index]
    with pytest.raises(ValueError, match=f"chats.jsonl:{BLOCK + 6}: "):
        streamed("raise").item(BLOCK)  # the first block is intact


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


def test_rows_of_a_user_are_altered_only_where_that_is_asked_for(tmp_path: Path) -> None:
    row = said({"role": "assistant", "reasoning_content": "six sevens", "content": "42"})
    file = chats(saved(tmp_path / "chats.jsonl", row))

    def batch(config: SftConfig) -> set[str]:
        limits: Any = {"batch_size": 200, "max_tokens": None, "on_error": "raise"}
        data = SftData(file.item, TOKENS, config.modes(left_out=True), **limits, seed=1)
        return {TOKENIZER.decode(sequence.ids) for sequence in data.batch(1)}

    assert batch(SftConfig(data=DataConfig(path="chats.jsonl"))) == {text(parse_chat(row, 0))}
    asked = SftDataConfig(thinking=ThinkingMix(no_thinking=0.5))
    assert len(batch(SftConfig(data=DataConfig(path="chats.jsonl"), reasoning=asked))) == 2
    assert SftConfig().modes(left_out=True).thinking == ThinkingMix(budget=0.03, no_thinking=0.1)
    assert SftConfig().modes(left_out=False).thinking == ThinkingMix(budget=0.03)


def test_modes_are_read_from_a_configuration_that_names_some_and_a_limit_must_be_one() -> None:
    demo = Path("configs/demo.yaml")
    named: Config = load_config(demo, ["sft.data=x.jsonl", "sft.reasoning.thinking={no_thinking: 0.2}"])
    assert named.section(SftConfig).modes(left_out=False).thinking == ThinkingMix(budget=0.45, no_thinking=0.2)
    for stage in ("sft", "rft", "dpo"):
        with pytest.raises(ValueError, match=f"{stage}.max_tokens=0"):
            load_config(demo, [f"{stage}.max_tokens=0"])


def both(*answers: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Be brief."}, ASKED, *answers]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": both(SAID)},
        {"messages": json.dumps(both(SAID))},
        {"messages": [ASKED, SAID], "system": "Be brief."},
        {"messages": both(SAID), "system": "Be brief.", "images": [], "weight": 1, "tool_choice": "auto"},
        {"messages": None, "conversations": both(SAID)},
        {"messages": [{"role": "developer", "content": "Be brief."}, ASKED, SAID | {"train": True, "weight": None}]},
        {"messages": [one | {"content": [{"type": "text", "text": one["content"]}]} for one in both(SAID)]},
        {"conversations": [{"from": "human", "value": "6*7=?"}, {"from": "gpt", "value": "42"}], "system": "Be brief."},
        {"prompt": both(), "completion": "42"},
        {"prompt": "6*7=?", "completion": [SAID], "system": "Be brief."},
        {"prompt": json.dumps(both()), "completion": SAID, "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_rows_of_other_projects_train_the_same_tokens(row: dict[str, Any]) -> None:
    assert TOKENS.sample(parse_chat(row, 0)) == TOKENS.sample(parse_chat({"messages": both(SAID)}, 0))


def trained(row: dict[str, Any]) -> str:
    sample = TOKENS.sample(parse_chat(row, 0))
    return str(TOKENIZER.decode([one for one, own in zip(sample.ids, sample.trained_T, strict=True) if own]))


@pytest.mark.parametrize(
    "flag", [{"train": False}, {"loss": False}, {"loss_mask": 0}, {"trainable": False}, {"weight": 0}]
)
def test_a_flagged_answer_and_the_answers_of_a_prompt_are_not_trained(flag: dict[str, Any]) -> None:
    wrong = {"role": "assistant", "content": "41"}
    assert trained(said(wrong | flag, ASKED, SAID)) == "42<|im_end|>"
    assert trained({"prompt": [ASKED, wrong, ASKED], "completion": "42"}) == "42<|im_end|>"


def test_sharegpt_calls_are_calls() -> None:
    row = {
        "conversations": [
            {"from": "human", "value": "6*7=?"},
            {"from": "function_call", "value": json.dumps(CALL["function"])},
            {"from": "observation", "value": "17"},
            {"from": "gpt", "value": "42"},
        ]
    }
    asks = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert text(parse_chat(row, 0)) == text(parse_chat(said(asks, {"role": "tool", "content": "17"}, SAID), 0))


def test_reasoning_of_a_row_that_switches_thinking_off_is_not_trained() -> None:
    row = said(SAID | {"reasoning_content": "six sevens"}, chat_template_kwargs={"enable_thinking": False})
    assert parse_chat(row, 0).task.thinking == OFF
    assert trained(row) == "42<|im_end|>"


def test_nulls_of_padding_are_no_values_and_nulls_of_a_schema_are() -> None:
    properties = {
        "key": {"type": "string", "enum": None, "default": None},
        "unit": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "city": None,
    }
    schema = {"type": "object", "properties": properties, "required": ["key"], "strict": None}
    tools = [{"type": "function", "function": {"name": "get", "parameters": schema, "description": None}}]
    given = {"key": "t", "unit": None, "city": None, "n": None}
    call = {"type": "function", "id": None, "function": {"name": "get", "arguments": given}}
    dialogue = parse_chat(said({"role": "assistant", "content": None, "tool_calls": [call]}, tools=tools), 0)
    (function,) = (one["function"] for one in dialogue.reply[0]["tool_calls"])
    assert function["arguments"] == {"key": "t", "unit": None}
    assert dialogue.task.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"key": {"type": "string"}, "unit": properties["unit"]},
        "required": ["key"],
    }
    written = call | {"function": {"name": "get", "arguments": json.dumps(given)}}  # a table pads no text
    dialogue = parse_chat(said({"role": "assistant", "content": "", "tool_calls": [written]}, tools=tools), 0)
    assert dialogue.reply[0]["tool_calls"][0]["function"]["arguments"] == given


def test_unread_fields_are_counted_once(tmp_path: Path) -> None:
    rows = (said(SAID, source="a"), said(SAID | {"content": "43", "time": 3}, source="b", url=None))
    counts = chats(saved(tmp_path / "chats.jsonl", *rows)).counts
    assert [(count, name) for name, count in counts.items() if "source" in name or "messages.time" in name] == [
        (2, "have fields that are not read (source)"),
        (1, "have fields that are not read (messages.time)"),
    ]


def test_a_completion_of_json_is_a_text_if_it_is_no_messages() -> None:
    text = json.dumps([{"role": "admin", "name": "Ann"}])
    assert parse_chat({"prompt": "Roles?", "completion": text}, 0).reply[0]["content"] == text
    assert parse_chat({"prompt": "Roles?", "completion": json.dumps([SAID])}, 0).reply[0]["content"] == "42"
