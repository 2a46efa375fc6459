"""Prompts that run once against sequences in full: the plan, the arrays, log-probabilities, gradients and updates."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny_models
from transformers import (
    FalconH1Config,
    NemotronHConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
)
from unit.learner.test_worker import in_processes, weights_of

from temper.learner.batches.micro_batches import MicroBatch, Prompts, TrainBatch, build_batch
from temper.learner.batches.packing import (
    ON_CPU,
    SharedPrefix,
    batch_cost,
    cheapest_plan,
    find_prefixes,
    micro_batch_size,
    plain_plan,
    shared_length,
)
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models import mamba_scan, packed_rows
from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import make_model
from temper.learner.models.loading import read_model
from temper.learner.models.logprobs import token_logprobs
from temper.learner.models.shape import require_shareable
from temper.learner.models.shared_prompt import causal_logits
from temper.learner.worker import TrainerWorker
from temper.rollout.token_arrays import as_floats, as_ids, as_marks

VOCABULARY = 260
LONGEST = 10**6
RAGGED = (((9, 3), (5, 1, 12, 33)), ((40, 3), (7, 20)), ((1, 3), (3,)), ((23, 3), (2, 2, 2)))
"""Groups: the shared prompt tokens, the common tokens after them, and the length of each answer."""
LOSS = LossConfig(kl_coefficient=0.05, error_guard=0.0)
OPTIM = OptimConfig(
    learning_rate=1e-3, warmup_steps=2, eps=1e-4
)  # Adam turns the rounding of a gradient near 0 into steps
STEPS = 3
PLAIN = ("nemotron_h", "mamba_at_the_end", "qwen3")
CASES = (
    ("nemotron_h", 0, LONGEST),
    ("nemotron_h", 0, 250),
    ("qwen3", 0, 250),
    ("nemotron_h", 2, 250),
    ("nemotron_h", 3, 250),
    ("mamba_at_the_end", 3, LONGEST),
)
"""Model, ZeRO stage, and tokens of a micro-batch: one of each kind, or gradients accumulated over many."""


def sliding_window(directory: Path) -> Path:
    config = Qwen3Config(
        vocab_size=288,
        use_sliding_window=True,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        **tiny_models.DENSE,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def mamba_at_the_end(directory: Path) -> Path:
    """A hybrid whose last layers get no gradient from the prompt."""
    small = {"hidden_size": 64, "intermediate_size": 128, "attention_heads": 2, "key_value_heads": 1}
    make_model(directory, FreshModelConfig(pattern="M*-M", **small), seed=0)
    return directory


FAMILIES = [
    tiny_models.nemotron_h,
    tiny_models.qwen3,
    tiny_models.llama,
    tiny_models.gemma2,
    tiny_models.gemma3,
    sliding_window,
    mamba_at_the_end,
]
WITH_WINDOWS = (tiny_models.gemma2, tiny_models.gemma3, sliding_window)


def loaded(make: Callable[[Path], Path], directory: Path) -> PreTrainedModel:
    mamba_scan.install()
    torch.manual_seed(0)
    return read_model(make(directory)).train()


def tokens(count: int, *, seed: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def answer(prompt: list[int], length: int, *, seed: int, group: int | None) -> TrainingSample:
    """An answer whose third token is injected. Sampled tokens have log-probabilities close to a fresh model's."""
    ids = (*prompt, *tokens(length, seed=seed))
    trained_T = tuple(t >= len(prompt) and t != len(prompt) + 2 for t in range(len(ids)))
    noise = torch.randn(len(ids), generator=torch.Generator().manual_seed(seed)).tolist()
    return TrainingSample(
        ids=as_ids(ids),
        trained_T=as_marks(trained_T),
        advantages_T=as_floats(tuple(noise[0] for _ in ids)),
        behaviour_T=as_floats(
            tuple(-5.6 + 0.3 * value if yes else math.nan for value, yes in zip(noise, trained_T, strict=True))
        ),
        group=group,
    )


def groups(shapes: tuple[tuple[int, tuple[int, ...]], ...]) -> list[TrainingSample]:
    """A group for each prompt length, with answers of these lengths."""
    return [
        answer(tokens(prompt, seed=number), length, seed=1000 * number + member, group=number)
        for number, (prompt, answers) in enumerate(shapes)
        for member, length in enumerate(answers)
    ]


GROUPS = groups(
    ((70, (20, 9, 14, 15, 15, 3)), (50, (12, 12, 30, 7, 8)), (33, (25,)), (66, (1, 2, 9, 21)), (70, (11, 10, 10, 8)))
)


def batch(sequences: list[TrainingSample], *, shared: bool, ranks: int = 1, tokens: int = LONGEST) -> TrainBatch:
    return build_batch(sequences, ranks=ranks, micro_batch_tokens=tokens, pad_id=0, shared_prompts=shared)


def processed(micro_batch: MicroBatch) -> int:
    prompts = 0 if micro_batch.prompts is None else micro_batch.prompts.ids_PS.size
    return prompts + micro_batch.ids_BT.size


def rows(built: TrainBatch) -> list[tuple[Any, ...]]:
    """The arrays of each sequence in a batch: ids, weights, advantages and log-probabilities from its second token."""
    found = []
    for micro_batch in (m for share in built.micro_batches for m in share):
        for row, weights_T in enumerate(micro_batch.weights_BT.tolist()):
            before: list[int] = []
            if micro_batch.prompts is not None:
                prompt = int(micro_batch.prompts.of_B[row])
                length = int(micro_batch.prompts.lengths_P[prompt])
                before = micro_batch.prompts.ids_PS[prompt].tolist()[-length:]
            ids = [*before, *micro_batch.ids_BT[row].tolist()]
            kept = [t for t, weight in enumerate(weights_T) if weight]
            values = [
                (t + len(before), weights_T[t], micro_batch.advantages_BT[row, t], micro_batch.behaviour_BT[row, t])
                for t in kept
            ]
            if kept:
                found.append((tuple(ids[: len(before) + kept[-1] + 1]), tuple(values)))
    return sorted(found)


@pytest.mark.parametrize(
    ("ids", "first_trained", "expected"),
    [
        (((1, 2, 3, 4), (1, 2, 3, 5)), (3, 3), 2),  # the prompt 1 2 3, without its last token
        (((1, 2, 3, 4), (1, 2, 9, 5)), (3, 3), 2),  # prompts that differ
        (((1, 2, 3, 4, 5), (1, 2, 3, 4, 6)), (4, 3), 2),  # forced tokens in one answer are not trained
        (((1, 2, 3), (1, 2, 3)), (1, 2), 0),
        (((1, 2, 3, 4), (1, 2, 3, 4), (8, 2, 3, 4)), (3, 3, 3), 0),
        (((1, 2, 3), (1, 2, 3, 4, 5)), (2, 2), 1),
    ],
)
def test_a_prompt_ends_where_sequences_differ_or_train(ids, first_trained, expected):
    assert shared_length([as_ids(own) for own in ids], first_trained) == expected


def test_a_shared_batch_holds_the_same_tokens_as_a_plain_one():
    for ranks, budget in ((1, LONGEST), (1, 250), (2, 400), (3, 400)):
        shared = batch(GROUPS, shared=True, ranks=ranks, tokens=budget)
        assert any(m.prompts is not None for share in shared.micro_batches for m in share)
        assert rows(shared) == rows(batch(GROUPS, shared=False, ranks=ranks, tokens=budget))
        assert shared.denominator == batch(GROUPS, shared=False).denominator


def test_micro_batches_with_prompts_count_the_tokens_that_run():
    whole = batch(GROUPS, shared=True).micro_batches[0]
    assert sum(processed(m) for m in whole) < 0.6 * sum(
        processed(m) for m in batch(GROUPS, shared=False).micro_batches[0]
    )
    small = batch(GROUPS, shared=True, tokens=250).micro_batches[0]
    assert len(small) > 3
    assert max(processed(m) for m in small) <= 250


def test_a_cheap_prompt_stays_in_its_sequences():
    for shapes in (((16, (16,) * 8),), ((512, (16,)),), ((16, (256,) * 16),)):
        assert [m.prompts for m in batch(groups(shapes), shared=True).micro_batches[0]] == [None]
    (only,) = batch(groups(((128, (16,) * 8),)), shared=True).micro_batches[0]
    assert only.prompts is not None
    assert (only.prompts.ids_PS.shape, only.ids_BT.shape) == ((1, 127), (8, 17))


def demonstration(prompt: list[int], length: int, *, seed: int) -> TrainingSample:
    trained_T = [False] * len(prompt) + [True] * length
    return TrainingSample.supervised(ids=(*prompt, *tokens(length, seed=seed)), trained_T=trained_T)


def demonstrations(*, system: int, tasks: int, each: int) -> list[TrainingSample]:
    """Rows of several tasks behind one system prompt, a round of all tasks at a time."""
    begin = tokens(system, seed=0)
    prompts = [[*begin, *tokens(9, seed=100 + task)] for task in range(tasks)]
    return [
        demonstration(prompt, 10 + (seed + task) % 5, seed=1000 * seed + task)
        for seed in range(each)
        for task, prompt in enumerate(prompts)
    ]


def prefixes_of(samples: list[TrainingSample]) -> list[tuple[tuple[int, ...], int]]:
    found = find_prefixes([s.group for s in samples], [s.ids for s in samples], [s.first_trained for s in samples])
    return sorted((tuple(sorted(prefix.rows)), prefix.prompt) for prefix in found)


def test_ungrouped_samples_share_the_longest_beginning_that_pays():
    assert prefixes_of(demonstrations(system=40, tasks=2, each=4)) == [((0, 2, 4, 6), 48), ((1, 3, 5, 7), 48)]
    assert prefixes_of(demonstrations(system=40, tasks=8, each=1)) == [(tuple(range(8)), 40)]
    assert prefixes_of(demonstrations(system=0, tasks=8, each=1)) == []
    talk = [demonstration(tokens(length, seed=1), 5, seed=length) for length in (20, 60, 50)]  # one chat, cut at turns
    assert prefixes_of([*talk, demonstration(tokens(30, seed=2), 5, seed=0)]) == [((1, 2), 49)]


def test_at_most_sixteen_ungrouped_samples_share():
    rows = demonstrations(system=300, tasks=40, each=1)
    assert sorted((len(own), prompt) for own, prompt in prefixes_of(rows)) == [(8, 300), (16, 300), (16, 300)]


def test_demonstrations_with_one_system_prompt_run_it_once():
    samples = demonstrations(system=200, tasks=6, each=2)
    plain, shared = (batch(samples, shared=sharing) for sharing in (False, True))
    assert repr(rows(shared)) == repr(rows(plain))  # a NaN does not equal itself
    processed_tokens = [sum(map(processed, made.micro_batches[0])) for made in (plain, shared)]
    assert processed_tokens[1] < 0.4 * processed_tokens[0]


def test_unlike_answers_are_cut_if_padding_costs_more():
    lengths = [2000] * 4 + [1010] * 4
    (plans,) = cheapest_plan(lengths, [SharedPrefix(rows=tuple(range(8)), prompt=1000)], ranks=1, budget=LONGEST)
    assert [[item.rows for item in plan] for plan in plans] == [[(0, 1, 2, 3)], [(4, 5, 6, 7)]]
    assert [micro_batch_size(plan).tokens for plan in plans] == [1000 + 4 * 1000, 1000 + 4 * 10]


def test_unlike_answers_share_no_prompt_if_packing_costs_less():
    lengths = [1100] * 4 + [110] * 4
    (plans,) = cheapest_plan(lengths, [SharedPrefix(rows=tuple(range(8)), prompt=100)], ranks=1, budget=LONGEST)
    (size,) = [micro_batch_size(plan) for plan in plans]
    assert (size.prompt, size.rests) == (0, sum(lengths))
    assert sum(lengths) < size.cost(ON_CPU) < 0.6 * size.tokens


def test_a_plan_is_never_dearer_than_the_one_without_prompts():
    for ranks in (1, 2, 4):
        lengths = [len(sequence.ids) for sequence in GROUPS]
        first = [(0, 6, 69), (6, 11, 49), (12, 16, 65), (16, 20, 69)]
        prefixes = [SharedPrefix(rows=tuple(range(start, stop)), prompt=prompt) for start, stop, prompt in first]
        plan = cheapest_plan(lengths, prefixes, ranks=ranks, budget=500)
        assert batch_cost(plan, ON_CPU) <= batch_cost(plain_plan(lengths, ranks=ranks, budget=500), ON_CPU)
        assert all(plan)
        assert sorted(row for share in plan for packed in share for item in packed for row in item.rows) == list(
            range(20)
        )


def test_every_rank_makes_the_same_passes_in_the_same_order():
    shapes = ((200, (30, 20, 10, 5, 5, 5)), (5, (400, 350)), (5, (410,)), (5, (380, 390)))
    built = batch(groups(shapes), shared=True, ranks=2, tokens=500)
    kinds = [[m.prompts is not None for m in share] for share in built.micro_batches]
    assert kinds[0] == kinds[1]
    assert set(kinds[0]) == {True, False}
    assert rows(built) == rows(batch(groups(shapes), shared=False))


def halves(parts: list[torch.Tensor], place: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return [part[:, :place] for part in parts], [part[:, place:] for part in parts]


@pytest.mark.parametrize("place", [1, 8, 13])
def test_a_continued_scan_equals_one_scan(place):
    torch.manual_seed(place)
    values = [torch.randn(2, 30, 4, 3), torch.rand(2, 30, 4), torch.randn(2, 30, 2, 5), torch.randn(2, 30, 2, 5)]
    once, twice = ([tensor.double().requires_grad_() for tensor in values] for _ in range(2))
    a, d = -torch.arange(1.0, 5.0).double(), torch.randn(4).double()
    whole, _ = mamba_scan.chunk_scan(once[0], once[1], a, once[2], once[3], chunk_size=8, d_H=d)
    (x, dt, b, c), (x2, dt2, b2, c2) = halves(twice, place)
    begin, state = mamba_scan.chunk_scan(x, dt, a, b, c, chunk_size=8, d_H=d)
    rest, _ = mamba_scan.chunk_scan(x2, dt2, a, b2, c2, chunk_size=8, d_H=d, initial_BHPN=state)
    assert torch.allclose(torch.cat([begin, rest], dim=1), whole, atol=1e-12)
    whole.sin().sum().backward()
    torch.cat([begin, rest], dim=1).sin().sum().backward()
    for one, two in zip(once, twice, strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert torch.allclose(one.grad, two.grad, atol=1e-10)


def gradients(model: PreTrainedModel, total: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    total.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("shapes", [RAGGED, RAGGED[1:2], (((17, 1), (4, 4)), ((17, 1), (9,)))])
@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_answers_behind_prompts_equal_whole_sequences(tmp_path, make, shapes):
    """Ragged groups, a group of one, a prompt of one token, and prompts of different lengths in one micro-batch.

    A model that keeps sequences apart by borders runs with a mask too.
    """
    model = loaded(make, tmp_path)
    prompts = [tokens(once, seed=number) for number, ((once, _), _) in enumerate(shapes)]
    answers = [[tokens(common + n, seed=10 * n) for n in lengths] for (_, common), lengths in shapes]
    flat = [(prompt, ids) for prompt, group in zip(prompts, answers, strict=True) for ids in group]
    weights = [torch.randn(len(ids) - 1, generator=torch.Generator().manual_seed(len(ids))) for _, ids in flat]
    alone = []
    for prompt, ids in flat:
        whole = torch.tensor([[*prompt, *ids]])
        alone.append(token_logprobs(model(input_ids=whole, use_cache=False).logits, whole)[0, len(prompt) + 1 :])
    expected = gradients(model, torch.stack([(w * x).sum() for w, x in zip(weights, alone, strict=True)]).sum())

    padded = torch.full((len(flat), max(len(ids) for _, ids in flat)), 9)
    for row, (_, ids) in enumerate(flat):
        padded[row, : len(ids)] = torch.tensor(ids)
    once = Prompts.pad(prompts, rows_P=[len(group) for group in answers], pad_id=7)
    by_borders = not packed_rows.install(model, model)
    assert by_borders == (make not in WITH_WINDOWS)
    passes = []
    for packs in {False, by_borders}:
        logprobs_BT = token_logprobs(causal_logits(model, model.config, padded, once, packs=packs), padded)
        together = [logprobs_BT[row, 1 : len(ids)] for row, (_, ids) in enumerate(flat)]
        passes.append(torch.cat([one.detach() for one in together]))
        assert max(float((a - b).detach().abs().max()) for a, b in zip(alone, together, strict=True)) < 1e-5
        found = gradients(model, torch.stack([(w * x).sum() for w, x in zip(weights, together, strict=True)]).sum())
        assert set(found) == set(expected)
        for name, gradient in expected.items():
            assert float((found[name] - gradient).norm()) <= 1e-4 * float(gradient.norm()), name
    assert torch.allclose(passes[0], passes[-1], rtol=0, atol=1e-6 * float(passes[0].abs().max()))


def test_what_pads_a_prompt_does_not_matter(tmp_path):
    model = loaded(tiny_models.nemotron_h, tmp_path)
    ids = torch.tensor([tokens(6, seed=1), tokens(6, seed=2)])
    with torch.no_grad():
        logits = [
            causal_logits(
                model,
                model.config,
                ids,
                Prompts.pad([tokens(30, seed=3), tokens(4, seed=4)], rows_P=[1, 1], pad_id=pad_id),
            )
            for pad_id in (0, 255)
        ]
    assert torch.equal(*logits)


def test_a_model_that_can_not_continue_is_refused():
    require_shareable(NemotronHConfig())
    for config, reason in (
        (FalconH1Config(), "hybrid"),
        (Qwen3NextConfig(), "linear_attention"),
        (NemotronHConfig(use_bias=True), "padding"),
    ):
        with pytest.raises(ValueError, match=rf"{reason}.*set learner\.shared_prompts=false"):
            require_shareable(config)


def trained(learner: TrainerWorker, model: str, *, shared: bool, tokens: int) -> dict[str, Any]:
    """Steps with the divergence from the first weights in the loss, which the reference model has to compute alike."""
    learner.load(model, optim=OPTIM, total_steps=STEPS)
    metrics = []
    for _ in range(STEPS):
        step = batch(GROUPS, shared=shared, ranks=learner.config.ranks, tokens=tokens)
        metrics.append(learner.train_step(step.share(learner.rank), loss=LOSS))
    weights = weights_of(learner)
    learner.close()
    return {"metrics": metrics, "weights": weights}


def one_rank(rank: int, port: int, folder: str) -> dict[Any, dict[str, Any]]:
    results: dict[Any, dict[str, Any]] = {}
    for zero_stage in (0, 2, 3):
        learner = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=zero_stage))
        for name in PLAIN if zero_stage == 0 else ():
            results[name] = trained(learner, f"{folder}/{name}", shared=False, tokens=LONGEST)
        for case in (case for case in CASES if case[1] == zero_stage):
            results[case] = trained(learner, f"{folder}/{case[0]}", shared=True, tokens=case[2])
    return results


def two_ranks(rank: int, port: int, folder: str) -> dict[str, Any]:
    learner = TrainerWorker(rank, 2, "127.0.0.1", port, LearnerConfig(ranks=2, zero_stage=3))
    return trained(learner, f"{folder}/nemotron_h", shared=True, tokens=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for make in (tiny_models.nemotron_h, mamba_at_the_end, tiny_models.qwen3):
        make(folder / make.__name__)
    return str(folder)


@pytest.fixture(scope="module")
def alone(folder: str) -> dict[str, Any]:
    return in_processes(one_rank, ranks=1, arguments=(folder,))[0]


def assert_trained_alike(result: dict[str, Any], plain: dict[str, Any]) -> None:
    for step, expected in zip(result["metrics"], plain["metrics"], strict=True):
        for name in expected:
            assert step[name] == pytest.approx(expected[name], abs=1e-5, rel=1e-4), name
    for name, tensor in plain["weights"].items():
        assert torch.allclose(result["weights"][name], tensor, atol=2e-6), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_shared_prompts_train_like_whole_sequences(alone, case):
    assert_trained_alike(alone[case], alone[case[0]])


def test_training_moves_more_than_the_paths_differ(alone):
    first, *_, last = alone["nemotron_h"]["metrics"]
    assert abs(first["loss"] - last["loss"]) > 1e-2


@pytest.mark.slow
def test_shared_prompts_train_alike_at_stage_3_on_two_ranks(alone, folder):
    result, _ = in_processes(two_ranks, ranks=2, arguments=(folder,))
    assert_trained_alike(result, alone["nemotron_h"])
