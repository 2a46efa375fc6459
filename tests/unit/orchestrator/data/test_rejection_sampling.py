"""Sampled answers as training data: unchanged token ids, and thinking truncated as in a rollout."""

from dataclasses import replace
from pathlib import Path

import pytest

from temper.envs.binding import bind_all
from temper.envs.config import EnvConfig
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import ThinkingMix
from temper.envs.core.turn_text import CLOSE_THINKING
from temper.learner.batches.samples import TrainingSample
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.data.sampled_answers import (
    RejectionSampledData,
    SampledAnswer,
    answer_lines,
    read_answers,
    sample_of,
    worth_imitating,
)
from temper.orchestrator.loop.mixture import Draw, Mixture, open_mixture
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, TurnFault, WeightVersion

TOKENIZER = byte_tokenizer()
TAGS = ThinkingTags(TOKENIZER)
DRAW = Draw(env="math", index=0)
NEVER_CUT = ThinkingMix()


def mixture(*, thinks: bool = True) -> Mixture:
    return open_mixture(bind_all({"math": EnvConfig(thinking=thinks)}), {}, split="train", seed=1)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def parse_assistant_message(context: tuple[int, ...], text: str, *, forced: str = "") -> Turn:
    """Build a turn. The text `forced` is an injected end of thinking."""
    ids = ids_of(text)
    start = len(ids_of(text[: text.index(forced)])) if forced else len(ids)
    marks = tuple(start <= place < start + len(ids_of(forced)) for place in range(len(ids)))
    return Turn(
        context_ids=as_ids(context),
        sampled_ids=as_ids(ids),
        logprobs_T=as_floats((-1.0,) * len(ids)),
        versions_T=as_ids((0,) * len(ids)),
        injected_T=as_marks(marks),
        text=text,
        thinking=TAGS.measure(ids, thinks=True),
    )


def trajectory(*turns: Turn) -> Trajectory:
    task: Task = mixture().task(DRAW)
    return Trajectory(task=task, turns=turns, stop=Stop.ENV, reward=1.0)


def two_turns() -> Trajectory:
    prompt = Renderer(TOKENIZER).prompt_ids(mixture().task(DRAW))
    return trajectory(
        parse_assistant_message(prompt, "long thought\n</think>\nask<|im_end|>"),
        parse_assistant_message(ids_of("[told]<think>\n"), "so\n</think>\n42<|im_end|>", forced="\n</think>\n"),
    )


def save(path: Path, *said: Trajectory) -> None:
    """Write the file of a run that sampled these answers for one task."""
    ticket = Ticket(number=0, task=mixture().task(DRAW), admitted=WeightVersion(step=0))
    path.write_text("\n".join(answer_lines(DRAW, Group(ticket=ticket, trajectories=said))) + "\n", encoding="utf-8")


def own(
    path: Path,
    *,
    thinking: ThinkingMix = NEVER_CUT,
    batch_size: int = 1,
    thinking_config: ThinkingConfig | None = None,
    said: Trajectory | None = None,
    max_tokens: int | None = None,
    tags: ThinkingTags | None = TAGS,
) -> tuple[RejectionSampledData, SampledAnswer]:
    save(path, said or two_turns())
    (answers, _), settings = read_answers(path, max_tokens=max_tokens), thinking_config or ThinkingConfig()
    data = RejectionSampledData(
        answers,
        mixture(thinks=said is None),
        Renderer(TOKENIZER, settings),
        tags,
        thinking=thinking,
        thinking_config=settings,
        batch_size=batch_size,
        max_tokens=max_tokens,
        seed=1,
    )
    return data, answers[0]


def texts(sample: TrainingSample) -> tuple[str, str]:
    """Return the text after the prompt and the trained text."""
    trained = [token for token, on in zip(sample.ids, sample.trained_T, strict=True) if on]
    return TOKENIZER.decode(sample.ids[sample.first_trained :]), TOKENIZER.decode(trained)


def test_an_answer_is_trained_as_it_was_sampled_without_what_was_forced(tmp_path: Path) -> None:
    data, answer = own(tmp_path / "own.jsonl")
    whole, trained = texts(data.sample(answer, budget=None))
    assert whole == "long thought\n</think>\nask<|im_end|>[told]<think>\nso\n</think>\n42<|im_end|>"
    assert trained == "long thought\n</think>\nask<|im_end|>so42<|im_end|>"


def test_under_a_budget_each_longer_thought_is_cut_and_its_own_answer_follows(tmp_path: Path) -> None:
    data, answer = own(tmp_path / "own.jsonl")
    whole, trained = texts(data.sample(answer, budget=4))
    assert whole == "long\n</think>\nask<|im_end|>[told]<think>\nso\n</think>\n42<|im_end|>"
    assert trained == "longask<|im_end|>so42<|im_end|>"
    shared, answer = own(tmp_path / "own.jsonl", thinking_config=ThinkingConfig(scope="episode"))
    whole, _ = texts(shared.sample(answer, budget=5))
    assert whole == "long \n</think>\nask<|im_end|>[told]<think>\n\n</think>\n42<|im_end|>"
    data, answer = own(tmp_path / "own.jsonl", thinking_config=ThinkingConfig(announce=True))
    assert "{thinking token budget: 4}<|im_end|>" in TOKENIZER.decode(data.sample(answer, budget=4).ids)
    assert "budget" not in TOKENIZER.decode(data.sample(answer, budget=None).ids)


def test_a_step_has_the_same_batch_in_a_continued_run_and_the_share_of_cut_thoughts_holds(tmp_path: Path) -> None:
    def data() -> RejectionSampledData:
        return own(tmp_path / "own.jsonl", thinking=ThinkingMix(budget=0.5, budgets=[2]), batch_size=200)[0]

    batch = data().batch(2)
    assert batch[0] == data().batch(2)[0]
    cut = sum("lo\n" + CLOSE_THINKING in TOKENIZER.decode(sequence.ids) for sequence in batch)
    assert 80 < cut < 120


def test_only_right_whole_and_well_formed_answers_are_kept() -> None:
    right = two_turns()
    assert worth_imitating(right)
    assert not worth_imitating(replace(right, reward=0.0))
    assert not worth_imitating(replace(right, stop=Stop.LENGTH))
    assert not worth_imitating(replace(right, turns=(replace(right.turns[0], faults=(TurnFault.THINKING,)),)))


def test_an_answer_without_a_thought_gets_no_budget_and_no_announcement(tmp_path: Path) -> None:
    cut = ThinkingMix(budget=1.0, budgets=[4])
    prompt = Renderer(TOKENIZER).prompt_ids(mixture(thinks=False).task(DRAW))
    ids = ids_of("42<|im_end|>")
    turn = replace(parse_assistant_message(prompt, "42<|im_end|>"), thinking=TAGS.measure(ids, thinks=False))
    announced = ThinkingConfig(announce=True)
    data, answer = own(tmp_path / "own.jsonl", thinking=cut, thinking_config=announced, said=trajectory(turn))
    assert tuple(data.batch(1)[0].ids) == (*prompt, *ids)
    assert answer.turns == (turn,)  # equal after the round trip through the file


def test_an_answer_over_the_limit_is_left_out_and_counted_never_cut(tmp_path: Path) -> None:
    short = trajectory(
        parse_assistant_message(Renderer(TOKENIZER).prompt_ids(mixture().task(DRAW)), "so\n</think>\n42<|im_end|>")
    )
    path = tmp_path / "own.jsonl"
    save(path, two_turns(), short)
    length = len(sample_of(short.turns).ids)
    kept, counts = read_answers(path, max_tokens=length)
    assert [answer.turns for answer in kept] == [short.turns]
    assert counts == {"rows": 1, f"longer than {length} tokens and skipped": 1}
    with pytest.raises(ValueError, match=f"own.jsonl.* {length - 1} tokens"):
        read_answers(path, max_tokens=length - 1)


def test_a_budget_that_makes_the_prompt_too_long_leaves_the_answer_whole(tmp_path: Path) -> None:
    cut = ThinkingMix(budget=1.0, budgets=[9])
    whole = sample_of(two_turns().turns)
    data, _ = own(
        tmp_path / "own.jsonl", thinking=cut, thinking_config=ThinkingConfig(announce=True), max_tokens=len(whole.ids)
    )
    assert data.batch(1)[0] == whole


def test_a_budget_that_the_prompt_can_not_announce_cuts_nothing(tmp_path: Path) -> None:
    cut = ThinkingMix(budget=1.0, budgets=[4])
    greeted = (*Renderer(TOKENIZER).prompt_ids(mixture().task(DRAW)), *ids_of("[and what the server says]<think>\n"))
    said = trajectory(parse_assistant_message(greeted, "long thought\n</think>\n42<|im_end|>"))
    path = tmp_path / "own.jsonl"
    whole = sample_of(said.turns)
    assert own(path, thinking=cut, thinking_config=ThinkingConfig(announce=True), said=said)[0].batch(1)[0] == whole
    assert len(own(path, thinking=cut, said=said)[0].batch(1)[0].ids) < len(whole.ids)


def test_a_model_without_thoughts_learns_from_its_answers_as_they_are(tmp_path: Path) -> None:
    data, answer = own(tmp_path / "own.jsonl", thinking=ThinkingMix(budget=1.0), tags=None)
    assert data.batch(1)[0] == sample_of(answer.turns)
