"""The forced end of thinking, in tokens, with a tag of one token and of several."""

import pytest
from support.refusals import refuses
from transformers import PreTrainedTokenizerBase

from temper.envs.core.turn_text import OWN_TAGS, split_turn
from temper.learner.models.fresh import byte_tokenizer
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ForcedEnd, ThinkingLimit, ThinkingTags
from temper.rollout.trajectory import Closed

ONE_TOKEN = byte_tokenizer()
CLOSE = ONE_TOKEN.convert_tokens_to_ids("</think>")


def spelt_out() -> PreTrainedTokenizerBase:
    """A tokenizer whose tags are single characters."""
    import json

    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    state = json.loads(ONE_TOKEN.backend_tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if "think" not in token["content"]]
    for number, token in enumerate(state["added_tokens"]):
        token["id"] = 256 + number
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), eos_token="<|im_end|>", pad_token="<|pad|>"
    )
    other.chat_template = ONE_TOKEN.chat_template
    return other


SPELT_OUT = spelt_out()
BOTH = pytest.mark.parametrize("tokenizer", [ONE_TOKEN, SPELT_OUT], ids=["one token", "spelt out"])


def ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def injected_text(
    tokenizer: PreTrainedTokenizerBase, said: str, *, tokens: int, grace: int = 0
) -> tuple[int, str] | None:
    forced_end = ThinkingTags(tokenizer).forced_end(ids(tokenizer, said), ThinkingLimit(tokens=tokens, grace=grace))
    return None if forced_end is None else (forced_end.start, str(tokenizer.decode(list(forced_end.ids))))


def test_the_tags_of_the_second_tokenizer_are_several_tokens() -> None:
    assert (len(ids(ONE_TOKEN, "</think>")), len(ids(SPELT_OUT, "</think>"))) == (1, 8)


@BOTH
def test_the_closing_comes_from_the_template(tokenizer: PreTrainedTokenizerBase) -> None:
    assert ThinkingTags(tokenizer).closing == "\n</think>\n"


@BOTH
@pytest.mark.parametrize(
    ("said", "tokens", "grace", "expected"),
    [
        ("7+8", 5, 0, None),  # not there yet
        ("7+8=1", 5, 0, (5, "\n</think>\n")),
        ("7+8=15 4", 5, 0, (5, "\n</think>\n")),  # the place does not depend on later ids
        ("7+8=1", 5, 4, None),  # it may finish its line
        ("7+8=15\n4+", 5, 4, (7, "</think>\n")),  # the line ended: its newline is part of the closing
        ("7+8=15 4+3", 5, 4, (9, "\n</think>\n")),  # no line ended within the grace
        ("7+8=\n", 5, 4, (5, "</think>\n")),  # a line ends at the budget itself
        ("", 0, 0, (0, "\n</think>\n")),
    ],
)
def test_thinking_ends_at_its_budget_or_line_end(
    tokenizer: PreTrainedTokenizerBase, said: str, tokens: int, grace: int, expected: tuple[int, str] | None
) -> None:
    assert injected_text(tokenizer, said, tokens=tokens, grace=grace) == expected


@BOTH
@pytest.mark.parametrize("grace", [0, 3])
def test_a_thought_that_has_ended_by_itself_is_left_alone(tokenizer: PreTrainedTokenizerBase, grace: int) -> None:
    said = "ab\n</think>\nthe answer is long"
    budget = len(ids(tokenizer, "ab\n</think>"))
    assert injected_text(tokenizer, said, tokens=budget, grace=grace) is None


def test_a_tag_that_is_half_said_is_completed_and_not_doubled() -> None:
    assert injected_text(SPELT_OUT, "ab\n</thi", tokens=8) == (8, "nk>\n")
    assert injected_text(SPELT_OUT, "ab</thi", tokens=7) == (7, "nk>\n")  # without the closing's first newline
    assert injected_text(SPELT_OUT, "1<2 <", tokens=5) == (5, "\n</think>\n")  # a lone < is not a tag yet
    assert ThinkingTags(SPELT_OUT, closing="</think>").forced_end(
        ids(SPELT_OUT, "ab</thi"), ThinkingLimit(tokens=7)
    ) == ForcedEnd(start=7, ids=tuple(ids(SPELT_OUT, "nk>")))


@BOTH
def test_thought_and_answer_are_measured_without_the_tag(tokenizer: PreTrainedTokenizerBase) -> None:
    tags = ThinkingTags(tokenizer)
    said = ids(tokenizer, "abc</think>\nxy")
    assert tags.close_of(said) == (3, 3 + len(ids(tokenizer, "</think>")))
    free = tags.measure(said, thinks=True)
    assert (free.tokens, free.answer_tokens, free.closed) == (3, 3, Closed.ITSELF)
    never = tags.measure(ids(tokenizer, "abc"), thinks=True)
    assert (never.tokens, never.answer_tokens, never.closed) == (3, 0, Closed.NEVER)
    off = tags.measure(ids(tokenizer, "xy"), thinks=False)
    assert (off.tokens, off.answer_tokens, off.closed) == (0, 2, Closed.NONE)
    cut = ids(tokenizer, "abc\n</think>\nxy")
    forced_end = tags.forced_end(cut, ThinkingLimit(tokens=3))
    assert forced_end is not None
    marks = [forced_end.start <= place < forced_end.end for place in range(len(cut))]
    forced = tags.measure(cut, thinks=True, injected_T=marks)
    assert (forced.tokens, forced.answer_tokens, forced.closed) == (3, 2, Closed.ABRUPT)


def test_missing_tags_are_refused() -> None:
    plain = spelt_out()
    plain.chat_template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    assert ThinkingTags.find(plain) is None
    for find, tokenizer, closing, named in (
        (ThinkingTags, plain, None, "no thinking tags"),
        (ThinkingTags.find, plain, "</think>", "no thinking tags"),
        (ThinkingTags, ONE_TOKEN, "done", "'</think>'"),
        (ThinkingTags.find, ONE_TOKEN, "done", "'</think>'"),
    ):
        with pytest.raises(ValueError, match=named):
            find(tokenizer, closing=closing)


def test_a_template_without_reasoning_has_the_usual_closing() -> None:
    mute = spelt_out()
    mute.chat_template = (
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<think>\n{% endif %}"
    )
    assert ThinkingTags(mute).closing == "\n</think>\n\n"


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [("grace", -1, "-1"), ("answer_tokens", 0, "0"), ("budget_notice", "think less", "%d")],
)
def test_impossible_settings_are_refused(name: str, value: object, named: str) -> None:
    with refuses(f"rollout.thinking.{name}", named):
        ThinkingConfig(**{name: value})  # type: ignore[arg-type]


def opening_itself() -> PreTrainedTokenizerBase:
    """A tokenizer whose model writes the opening tag itself."""
    other = spelt_out()
    other.chat_template = str(ONE_TOKEN.chat_template).replace(r"'<think>\n' if thinking else '<think></think>'", "''")
    return other


def played(tags: ThinkingTags, free: str, limit: ThinkingLimit) -> tuple[list[int], ForcedEnd | None]:
    """A turn of 40 tokens as the engine's processor makes it, token by token, and its injected part."""
    wanted, inserted = ids(SPELT_OUT, free), None
    said: list[int] = []
    while len(said) < 40:
        inserted = inserted or tags.forced_end(said, limit)
        place = None if inserted is None else len(said) - inserted.start
        if inserted is not None and place is not None and place < len(inserted.ids):
            said.append(inserted.ids[place])
        else:
            said.append(wanted[len(said) % len(wanted)])
    return said, inserted


@pytest.mark.parametrize("tokens", [0, 1, 3, 9])
@pytest.mark.parametrize("grace", [0, 4])
@pytest.mark.parametrize("before", ["", "\n  \n"])
def test_a_budget_counts_from_the_models_opening(before: str, tokens: int, grace: int) -> None:
    tags, limit = ThinkingTags(opening_itself()), ThinkingLimit(tokens=tokens, grace=grace)
    assert not tags.is_opened_by_prompt
    said, inserted = played(tags, f"{before}<think>7+8 is 15 as I think", limit)
    assert inserted is not None
    begin = len(before) + len("<think>")
    assert inserted.start == begin + tokens + grace  # no line ends
    assert tags.forced_end(said, limit) == inserted  # the place does not depend on later ids
    marks = tags.injected_marks(said, limit)
    assert tags.measure(said, thinks=True, injected_T=marks).tokens == tokens + grace
    parts = split_turn(str(SPELT_OUT.decode(said[: inserted.end])), OWN_TAGS, thinks=True, opened=False)
    assert (parts.well_formed, parts.reasoning) == (True, "7+8 is 15 as I think"[: tokens + grace].strip())


def test_a_line_end_in_the_opening_does_not_count() -> None:
    tags = ThinkingTags(opening_itself())
    _, inserted = played(tags, "\n<think>7+8\n=15 and so on", ThinkingLimit(tokens=2, grace=6))
    assert inserted is not None
    assert inserted.start == len("\n<think>7+8\n")


@pytest.mark.parametrize("tokens", [0, 1, 3])
@pytest.mark.parametrize("free", ["The answer is 15.", "<thin air>", "<b>15</b> <think>"])
def test_an_answer_without_a_thought_is_left_alone(free: str, tokens: int) -> None:
    tags = ThinkingTags(opening_itself())
    said, inserted = played(tags, free, ThinkingLimit(tokens=tokens))
    assert inserted is None
    assert tags.measure(said, thinks=True).closed == Closed.NONE


def test_a_turn_that_ends_in_an_opening_never_closed() -> None:
    assert ThinkingTags(opening_itself()).measure(ids(SPELT_OUT, "<thi"), thinks=True).closed == Closed.NEVER
