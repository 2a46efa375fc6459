"""Needles in texts of any length: lengths, positions, right answers."""

from pathlib import Path
from typing import Any

import pytest
from support.bound import bound, generated
from tokenizers import Tokenizer, models, pre_tokenizers

from temper.envs.catalog import configure_env
from temper.envs.core.row_format import load_row
from temper.envs.core.task import Task
from temper.envs.transcript import score_turns


def made(seed: int = 0, level: int = 1, **options: Any) -> Task:
    return generated("needles", options, seed=seed, level=level)


def text_of(task: Task) -> str:
    return str(task.messages[0]["content"])


def byte_tokenizer(folder: Path) -> Path:
    """Return a folder with a tokenizer of one token per byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("task", ["single", "many_keys", "many_values", "many_queries"])
@pytest.mark.parametrize("haystack", ["sentences", "needles"])
@pytest.mark.parametrize("length", [100, 1000, 20_000])
def test_a_text_has_the_length_that_was_asked_for(task: str, haystack: str, length: int) -> None:
    for unit, sentence in (("words", 10), ("characters", 60)):
        text = text_of(
            made(task=task, haystack=haystack, length=length * (10 if unit == "characters" else 1), unit=unit)
        )
        measured = len(text.split()) if unit == "words" else len(text) / 10
        assert length - sentence < measured <= length


def test_a_length_may_be_in_tokens(tmp_path: Path) -> None:
    folder = byte_tokenizer(tmp_path)
    task = made(task="single", length=2000, unit="tokens", tokenizer=str(folder))
    assert 2000 - 60 < len(text_of(task).encode()) <= 2000


def test_a_short_length_leaves_the_needles_and_the_question() -> None:
    task = made(task="many_values", length=1, needles=3)
    assert text_of(task).count("The code of") == 4
    assert all(value in text_of(task) for value in task.spec["values"])


@pytest.mark.parametrize(("depth", "low", "high"), [(0, 0, 0.01), (0.5, 0.45, 0.55), (1, 0.97, 1)])
def test_the_needle_lies_at_its_depth(depth: float, low: float, high: float) -> None:
    text = text_of(made(task="single", length=2000, depth=depth))
    assert low <= text.index("The code of") / len(text) <= high


def test_without_a_depth_the_needle_lies_anywhere() -> None:
    places = [text_of(made(seed, task="single", length=500)).index("The code of") for seed in range(60)]
    assert min(places) < 500
    assert max(places) > 2000


@pytest.mark.parametrize("haystack", ["sentences", "needles"])
def test_nothing_else_in_the_text_answers_the_question(haystack: str) -> None:
    for seed in range(30):
        task = made(seed, level=4, length=600, haystack=haystack)
        *told, _ = text_of(task).split(". What ")
        for value in task.spec["values"]:
            assert told[0].count(value) == 1


def test_the_codes_must_be_all_of_them_and_no_others() -> None:
    task = made(task="many_values", needles=3, length=300)
    one, two, three = task.spec["values"]
    (other,) = task.spec["others"]
    for right in (
        f"{one}, {two}, {three}",
        f"\\boxed{{{three} and {one} and {two}}}",
        f"They are {two}.\n{one}\n{three}",
    ):
        assert score_turns(task, [right]).reward == 1.0
    for wrong in (
        f"{one}, {two}",
        f"{one} {two} {three} {other}",
        f"{one}{two}{three}",
        f"{one}.{two} {three}",
        "",
        text_of(task),
    ):
        assert score_turns(task, [wrong]).reward == 0.0
    assert score_turns(task, [f"{one}, {two}"]).score.parts["recall"] == pytest.approx(2 / 3)


def test_rows_of_ruler_need_all_their_outputs() -> None:
    env = configure_env("needles", {})
    numbers = bound(load_row(env.formats, {"input": "... What are they?", "outputs": ["1234567", "7654321"]}), env)
    assert score_turns(numbers, ["7654321, 1234567"]).reward == 1.0
    assert score_turns(numbers, ["7654321, 1234567, 1111111"]).reward == 0.0
    words = bound(load_row(env.formats, {"input": "Which variables?", "outputs": ["ABCDE", "VWXYZ"]}), env)
    assert score_turns(words, ["They are VWXYZ and abcde."]).reward == 1.0
    assert score_turns(words, ["They are VWXYZ."]).score.parts == {"correct": 0.0, "format": 1.0, "recall": 0.5}
    with pytest.raises(ValueError, match="outputs"):
        load_row(env.formats, {"input": "?", "outputs": []})
