"""Preference pairs: rows of a file, pairs of sampled answers, and errors for invalid rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.orchestrator.data.test_rejection_sampling import (
    DRAW,
    TOKENIZER,
    ids_of,
    mixture,
    parse_assistant_message,
    trajectory,
    two_turns,
)

from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.data.config import DataConfig, OnError
from temper.learner.batches.pairs import Pair
from temper.learner.batches.samples import TrainingSample
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.config.supervised import DpoConfig
from temper.orchestrator.data.chat_data import DialogueTokenizer
from temper.orchestrator.data.preference_rows import Preference, parse_preference, preference_rows
from temper.orchestrator.data.row_intake import EpochBatches, RowIntake, ShuffledRows
from temper.orchestrator.data.sampled_answers import pair_lines, read_pairs
from temper.orchestrator.pipeline.config import load_config
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, TurnFault, WeightVersion

ASKED = [{"role": "user", "content": "6*7=?"}]
ROW = {
    "messages": ASKED,
    "chosen": "<think>\nsix sevens\n</think>\n42",
    "rejected": "a guess\n</think>\n\n41",
}


def read_preferences(
    path: Path, rows: RowIntake, *, on_error: OnError, streaming: bool = False
) -> ShuffledRows[Preference]:
    data = DataConfig(path=str(path), streaming=streaming)
    return preference_rows(data, rows, on_error=on_error, seed="1/dpo")


def tokens_of() -> DialogueTokenizer:
    return DialogueTokenizer(Renderer(TOKENIZER), ThinkingTags(TOKENIZER), ThinkingConfig())


def texts(sample: TrainingSample) -> tuple[str, str]:
    """Return the prompt text and the trained text."""
    return TOKENIZER.decode(sample.ids[: sample.first_trained]), TOKENIZER.decode(sample.ids[sample.trained_T])


def saved(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_a_row_becomes_two_answers_to_one_prompt_with_their_thoughts() -> None:
    pair = parse_preference(ROW, 0).pair(tokens_of())
    prompt, chosen = texts(pair.chosen)
    assert prompt.endswith("<|im_start|>user\n6*7=?<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert chosen == "six sevens\n</think>\n42<|im_end|>"
    assert texts(pair.rejected) == (prompt, "a guess\n</think>\n41<|im_end|>")


def test_answers_without_thoughts_follow_a_prompt_that_opens_none() -> None:
    row = parse_preference({"messages": ASKED, "chosen": "42", "rejected": "41\n"}, 0)
    tagged = parse_preference(ROW, 0, reads_reasoning=False)  # tags stay text without reasoning
    assert tagged.chosen.reply[0]["content"] == ROW["chosen"]
    assert row.chosen.task.thinking == tagged.chosen.task.thinking == OFF
    assert parse_preference(ROW, 0).chosen.task.thinking == UNLIMITED
    pair = row.pair(tokens_of())
    prompt, rejected = texts(pair.rejected)
    assert prompt.endswith("<think></think>")
    assert rejected == "41\n<|im_end|>"


def test_answers_that_are_dialogues_share_what_stands_before_them() -> None:
    answers = {name: {"role": "assistant", "content": text} for name, text in (("chosen", "42"), ("rejected", "41"))}
    plain = parse_preference({"messages": ASKED, "chosen": "42", "rejected": "41"}, 0)
    whole = {name: [*ASKED, answer] for name, answer in answers.items()}
    assert parse_preference(whole, 0) == plain
    assert parse_preference({**whole, "messages": whole["chosen"]}, 0) == plain  # UltraFeedback's row format
    assert parse_preference({"messages": ASKED} | {name: [one] for name, one in answers.items()}, 0) == plain
    for prompt in (ASKED, ASKED[0]["content"]):
        for both in ({"chosen": "42", "rejected": "41"}, {name: [one] for name, one in answers.items()}):
            assert parse_preference({"prompt": prompt, **both}, 0) == plain
    other = [{"role": "user", "content": "6*8=?"}, answers["rejected"]]
    for row, named in (
        (whole | {"rejected": other}, "`chosen` and `rejected`"),
        (whole | {"rejected": ASKED}, "`chosen` and `rejected`"),
        ({"chosen": ASKED, "rejected": other[:1]}, "`messages`"),
        ({"messages": ASKED, "chosen": ASKED, "rejected": other[:1]}, "`chosen`.*{.role.: .user."),
        (whole | {"rejected": "41"}, "`messages`"),
        (whole | {"chosen": []}, "`chosen`"),
        ({"prompt": " ", "chosen": "42", "rejected": "41"}, "`messages`"),
        ({"prompt": [], "chosen": "42", "rejected": "41"}, "`prompt`"),
    ):
        with pytest.raises(ValueError, match=named):
            parse_preference(row, 0)


def test_a_prompt_beside_dialogues_is_never_dropped() -> None:
    first, more = {"role": "assistant", "content": "forty"}, {"role": "user", "content": "exactly?"}
    system = {"role": "system", "content": "Be short."}

    def row(*head: dict[str, str], **given: Any) -> dict[str, Any]:
        sides = {"chosen": "42", "rejected": "41"}
        return given | {name: [*head, {"role": "assistant", "content": text}] for name, text in sides.items()}

    def asked(given: dict[str, Any]) -> list[Any]:
        return [(one["role"], one["content"]) for one in parse_preference(given, 0).chosen.task.messages]

    def pairs(*messages: dict[str, str]) -> list[Any]:
        return [(one["role"], one["content"]) for one in messages]

    for prompt in (ASKED, ASKED[0]["content"]):
        assert asked(row(first, more, prompt=prompt)) == pairs(*ASKED, first, more)
        assert asked(row(*ASKED, first, more, prompt=prompt)) == pairs(*ASKED, first, more)
        assert asked(row(system, *ASKED, prompt=prompt)) == pairs(system, *ASKED)
    assert asked(row(*ASKED, prompt=[system])) == pairs(system, *ASKED)
    for given in (row(*ASKED, prompt="6*8=?"), row(*ASKED, prompt=[system, *ASKED]), row(*ASKED, messages=[more])):
        with pytest.raises(ValueError, match="`chosen` and `rejected`"):
            parse_preference(given, 0)
    both = {"messages": ASKED, "prompt": "6*8=?", "chosen": "42", "rejected": "41"}
    for given in (both, row(messages=ASKED, prompt="6*8=?")):
        with pytest.raises(ValueError, match="`prompt`.*6\\*8"):
            parse_preference(given, 0)
    assert asked(both | {"prompt": ASKED[0]["content"]}) == pairs(*ASKED)


def test_pairs_of_other_projects_are_read_alike() -> None:
    plain = parse_preference({"messages": ASKED, "chosen": "42", "rejected": "41"}, 0)
    asked = [{"from": "human", "value": ASKED[0]["content"]}]
    sides = {"chosen": {"from": "gpt", "value": "42"}, "rejected": {"from": "gpt", "value": "41"}}
    assert parse_preference({"conversations": asked, **sides}, 0) == plain
    row = parse_preference({"messages": ASKED, "chosen": "42", "rejected": "41", "system": "Be short."}, 0)
    assert [one["role"] for one in row.chosen.task.messages] == ["system", "user"]
    for name, value in (("images", ["a.png"]), ("weight", 2), ("chat_template_kwargs", {"style": "x"})):
        with pytest.raises(ValueError, match=name):
            parse_preference({"messages": ASKED, "chosen": "42", "rejected": "41", name: value}, 0)


def intake(*, max_tokens: int | None = None) -> RowIntake:
    return RowIntake(tokens_of(), max_tokens=max_tokens, setting="dpo.max_tokens")


def test_a_pair_over_the_limit_is_refused_or_skipped_and_counted_never_cut(tmp_path: Path) -> None:
    short = {"messages": ASKED, "chosen": "42", "rejected": "41"}
    path = saved(tmp_path / "pairs.jsonl", short, ROW | {"rejected": f"{'so ' * 20}</think>41"})
    with pytest.raises(ValueError, match="pairs.jsonl:2: .*dpo.max_tokens=40"):
        read_preferences(path, intake(max_tokens=40), on_error="raise")
    rows = read_preferences(path, intake(max_tokens=40), on_error="skip")
    assert rows.counts == {"rows": 1, "longer than 40 tokens and skipped": 1}
    pair = rows.item(0).pair(tokens_of())
    assert pair.chosen.ids[-1] == TOKENIZER.eos_token_id
    assert pair.chosen.trained_T[-1]


def test_reasoning_of_a_pair_that_switches_thinking_off_is_not_trained() -> None:
    preference = parse_preference(ROW | {"chat_template_kwargs": {"enable_thinking": False}}, 0)
    assert preference.chosen.task.thinking == OFF
    pair = preference.pair(tokens_of())
    assert [texts(one)[1] for one in (pair.chosen, pair.rejected)] == ["42<|im_end|>", "41<|im_end|>"]


def test_answers_that_become_the_same_tokens_are_no_pair(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = str(tokenizer.chat_template).replace(
        "{{ message.content or '' }}", "{{ message.content | trim }}"
    )
    trimmed = RowIntake(DialogueTokenizer.of(tokenizer, ThinkingConfig()), max_tokens=None, setting="dpo.max_tokens")
    path = saved(tmp_path / "pairs.jsonl", {"messages": ASKED, "chosen": "42", "rejected": "42\n"})
    with pytest.raises(ValueError, match="pairs.jsonl:1: `chosen` and `rejected`.*42"):
        read_preferences(path, trimmed, on_error="raise")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"messages": None}, "`messages`"),
        ({"messages": None, "question": "6*7=?"}, "columns: {prompt: question}"),
        ({"messages": []}, r"\[\]"),
        ({"messages": ["6*7=?"]}, r"6\*7=\?"),
        ({"messages": [{"role": "user"}]}, "{.role.: .user.}"),
        ({"messages": [*ASKED, {"role": "assistant", "content": "42"}]}, "`messages`.*42"),
        ({"chosen": 42}, "`chosen`.*42"),
        ({"rejected": " "}, '`rejected`.*" "'),
        ({"rejected": ROW["chosen"]}, "the same answer, .<think>"),
        ({"rejected": "41"}, "`chosen` has reasoning.*41"),
        ({"chosen": "42"}, "`rejected` has reasoning.*42"),
        ({"chosen": "<think>so 42"}, "`chosen`.*<think>so 42"),
        ({"chosen": "so</think>4</think>2"}, "so</think>4"),
        ({"chosen": ["x" * 100]}, r"\[.x+\.\.\."),
    ],
)
def test_a_malformed_row_is_named_with_file_line_and_value_or_skipped(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = saved(tmp_path / "pairs.jsonl", ROW, ROW | change)
    with pytest.raises(ValueError, match=f"(?s)pairs.jsonl:2: .*{named}.*on_error=skip"):
        read_preferences(path, intake(), on_error="raise")
    rows = read_preferences(path, intake(), on_error="skip")
    assert rows.counts == {"rows": 1, "malformed and skipped": 1}


def test_a_file_without_a_usable_row_is_refused_even_when_rows_are_skipped(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pairs\.jsonl"):
        read_preferences(saved(tmp_path / "pairs.jsonl", {"chosen": "42"}), intake(), on_error="skip")
    with pytest.raises(FileNotFoundError, match="none.jsonl"):
        read_preferences(tmp_path / "none.jsonl", intake(), on_error="raise")


def answered(*trajectories: Trajectory) -> Group:
    ticket = Ticket(number=0, task=mixture().task(DRAW), admitted=WeightVersion(step=0))
    return Group(ticket=ticket, trajectories=trajectories)


def said(text: str, *, reward: float) -> Trajectory:
    prompt = Renderer(TOKENIZER).prompt_ids(mixture().task(DRAW))
    return replace(trajectory(parse_assistant_message(prompt, text)), reward=reward)


def test_each_right_answer_is_paired_with_another_wrong_one_of_the_same_task(tmp_path: Path) -> None:
    right = [two_turns(), said("so\n</think>\n42<|im_end|>", reward=1.0)]
    unusable = [
        replace(right[1], stop=Stop.LENGTH),
        replace(right[1], turns=(replace(right[1].turns[0], faults=(TurnFault.THINKING,)),)),
    ]
    wrong = [said(f"{number}<|im_end|>", reward=0.0) for number in (7, 8, 9)]
    path = tmp_path / "dpo.jsonl"
    path.write_text("\n".join(pair_lines(DRAW, answered(*unusable, *wrong, *right))) + "\n", encoding="utf-8")
    (first, second), counts = read_pairs(path, max_tokens=None)
    assert counts == {"rows": 2}
    assert texts(first.chosen)[1].endswith("so42<|im_end|>")  # forced tokens are excluded
    assert ids_of("[told]")[0] in first.chosen.ids
    assert texts(first.rejected)[1] == "7<|im_end|>"
    assert texts(second.chosen)[1] == "so\n</think>\n42<|im_end|>"
    assert texts(second.rejected)[1] == "8<|im_end|>"
    length = len(second.chosen.ids)
    (short,), counts = read_pairs(path, max_tokens=length)
    assert short.chosen.ids.tolist() == second.chosen.ids.tolist()
    assert counts == {"rows": 1, f"longer than {length} tokens and skipped": 1}
    assert pair_lines(DRAW, answered(*wrong)) == pair_lines(DRAW, answered(*right)) == []


def test_a_step_has_the_same_pairs_in_a_continued_run_and_an_epoch_has_each_pair_once() -> None:
    made = [
        parse_preference({"messages": ASKED, "chosen": "42", "rejected": str(number)}, number).pair(tokens_of())
        for number in range(6)
    ]

    def batches() -> EpochBatches[Pair]:
        return EpochBatches(6, lambda at: made[at.item], batch_size=3, seed="1/dpo")

    before = batches()
    steps = [before.batch(step) for step in (1, 2, 3, 4)]
    assert batches().batch(3) == steps[2]
    for epoch in (steps[0] + steps[1], steps[2] + steps[3]):
        assert len({tuple(pair.rejected.ids) for pair in epoch}) == 6
    assert steps[0] + steps[1] != steps[2] + steps[3]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("dpo.beta=0", "dpo.beta=0.0"),
        ("dpo.samples=1", "dpo.samples=1"),
        ("dpo.steps=0", "dpo.steps=0"),
        ("dpo.on_error=ignore", "dpo.on_error=ignore"),
        ("dpo.shares.maths=1", "dpo.shares.maths"),
        ("dpo.batch_size=33 learner.ranks=2", "dpo.batch_size=33.*learner.ranks=2"),
    ],
)
def test_impossible_settings_are_refused(overrides: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        load_config(Path("configs/demo.yaml"), ["stages=[init,dpo]", *overrides.split()])
    loss = DpoConfig(beta=0.3).loss
    assert (loss.objective, loss.beta, loss.needs_reference) == ("dpo", 0.3, True)


def test_streamed_pairs_are_read_as_they_are_needed(tmp_path: Path) -> None:
    rows = [{"messages": ASKED, "chosen": f"{n}", "rejected": "no"} for n in range(5)]
    path = saved(tmp_path / "pairs.jsonl", *rows)
    streamed = read_preferences(path, intake(), on_error="raise", streaming=True)
    assert streamed.counts == {}
    said = [streamed.item(index).chosen.reply[0]["content"] for index in range(10)]
    assert sorted(said[:5]) == sorted(said[5:]) == ["0", "1", "2", "3", "4"]
