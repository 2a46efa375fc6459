"""Several updates from one batch: a real learner on two ranks against a plain loop of torch, and the parts by hand."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.refusals import refuses
from transformers import AutoModelForCausalLM, PreTrainedModel
from unit.learner.test_worker import batch, broken_batch, in_processes, policy_sequences, weights_of

from temper.learner.batches.micro_batches import BatchShare, MicroBatch, TrainBatch, build_batch
from temper.learner.batches.samples import TrainingSample, mini_batches
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.update import FixedValues, average_updates, subtract_divergence
from temper.learner.worker import TrainerWorker
from temper.orchestrator.config.loop import DistillConfig, RlConfig
from temper.orchestrator.pipeline.config import load_config
from temper.rollout.token_arrays import Floats, as_floats, as_ids, as_marks, tokens_of

DEMO = Path(__file__).parents[3] / "configs" / "demo.yaml"
EPOCHS = 2
UPDATES = 2 * EPOCHS
OPTIM = OptimConfig(learning_rate=2e-3, warmup_steps=0, schedule="linear", eps=1e-4, grad_clip=0.0)
PPO = LossConfig(clip_low=0.05, clip_high=0.07, kl_coefficient=0.05, kl="k2", error_guard=0.0)
PROMPT = 300


def parts(seed: int) -> list[list[TrainingSample]]:
    """Four answers to one prompt, and four sequences that stand alone, each with its place."""
    draw = torch.Generator().manual_seed(100 + seed)
    prompt = torch.randint(0, 264, (PROMPT,), generator=draw).tolist()
    first, last = policy_sequences(seed=seed)[:4], policy_sequences(seed=seed)[4:]
    answers = [
        TrainingSample(
            ids=as_ids((*prompt, *answer.ids)),
            trained_T=as_marks((*[False] * PROMPT, *answer.trained_T)),
            advantages_T=as_floats((*[0.0] * PROMPT, *answer.advantages_T)),
            behaviour_T=as_floats((*[math.nan] * PROMPT, *answer.behaviour_T)),
            group=7,
            place=place,
        )
        for place, answer in enumerate(first)
    ]
    return [answers, [replace(answer, place=len(first) + place) for place, answer in enumerate(last)]]


def halves(*, ranks: int, seed: int) -> list[TrainBatch]:
    return [
        build_batch(part, ranks=ranks, micro_batch_tokens=400, pad_id=0, shared_prompts=True) for part in parts(seed)
    ]


def epoch_parts(seed: int) -> list[list[TrainingSample]]:
    """The mini-batches of two epochs: in the second one of seed 1 each has two answers of the group and two other sequences."""
    one, other = parts(seed)
    again = [[*one[:2], *other[:2]], [*one[2:], *other[2:]]] if seed == 1 else [one, other]
    return [one, other, *again]


def in_epochs(*, seed: int) -> list[TrainBatch]:
    split = epoch_parts(seed)
    return [build_batch(part, ranks=2, micro_batch_tokens=400, pad_id=0, shared_prompts=True) for part in split]


def own(learner: TrainerWorker, batches: list[TrainBatch]) -> list[BatchShare]:
    return [batch.share(learner.rank) for batch in batches]


def updates(rank: int, port: int, folder: str) -> dict[str, Any]:
    """Two steps of two mini-batches and two epochs with a checkpoint between them, the second resumed from it, then others."""
    learner = TrainerWorker(rank, 2, "127.0.0.1", port, LearnerConfig(ranks=2, zero_stage=3))
    learner.load(f"{folder}/model", optim=OPTIM, total_steps=2 * UPDATES)
    shares = own(learner, halves(ranks=2, seed=0))
    first = learner.train(shares * EPOCHS, loss=PPO, epochs=EPOCHS)
    _, records = learner.token_records()
    heartbeat, micro_batches = learner.progress_counter.heartbeat(), sum(len(share.micro_batches) for share in shares)
    learner.save(f"{folder}/saved")
    second = learner.train(own(learner, in_epochs(seed=1)), loss=PPO, epochs=EPOCHS)
    weights = weights_of(learner)
    learner.load(f"{folder}/saved", optim=OPTIM, total_steps=2 * UPDATES)
    done = learner.restore(f"{folder}/saved")
    learner.train(own(learner, in_epochs(seed=1)), loss=PPO, epochs=EPOCHS)
    again = weights_of(learner)
    once = learner.train(own(learner, halves(ranks=2, seed=2)[:1]), loss=PPO)
    broken = learner.train(own(learner, [*halves(ranks=2, seed=3), broken_batch(ranks=2)]), loss=PPO)
    paying = replace(PPO, advantage="reinforce_pp", kl_in="reward", kl="k1")
    paid = learner.train(own(learner, [batch(ranks=2)]), loss=paying)
    learner.close()
    return {
        "first": first, "second": second, "weights": weights, "again": again, "done": done, "once": once,
        "broken": broken, "paid": paid, "heartbeat": heartbeat, "micro_batches": micro_batches, "records": records,
    }  # fmt: skip


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return in_processes(updates, ranks=2, arguments=(str(folder),))


@pytest.fixture(scope="module")
def trained(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    return ranks[0]


def logprobs(model: PreTrainedModel, sequence: TrainingSample) -> torch.Tensor:
    """log pi of the trained tokens."""
    ids = torch.tensor([sequence.ids.tolist()])
    logs_TV = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
    return logs_TV[torch.arange(ids.shape[1] - 1), ids[0, 1:]][torch.tensor(sequence.trained_T[1:])]


def of_trained(values_T: Floats, sequence: TrainingSample) -> torch.Tensor:
    return torch.tensor(values_T)[torch.tensor(sequence.trained_T)]


def ppo_loss(
    model: PreTrainedModel, reference: PreTrainedModel, sequence: TrainingSample, old: torch.Tensor
) -> torch.Tensor:
    """-min(pi_old / mu, 2) min(r A, clip(r) A) + 0.05 (log ref - log pi)^2 / 2, with the dual clip at 3."""
    now = logprobs(model, sequence)
    ratio, advantage = (now - old).exp(), of_trained(sequence.advantages_T, sequence)
    bounded = torch.minimum(ratio * advantage, ratio.clamp(0.95, 1.07) * advantage)
    bounded = torch.where(advantage < 0, torch.maximum(bounded, 3 * advantage), bounded)
    weight = (old - of_trained(sequence.behaviour_T, sequence)).exp().clamp(max=2.0)
    with torch.no_grad():
        known = logprobs(reference, sequence)
    return (-weight * bounded + 0.05 * (known - now).square() / 2).sum()


def plain_loop(directory: Path) -> PreTrainedModel:
    """The two steps with transformers and torch alone."""
    model, reference = (AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), eps=OPTIM.eps, weight_decay=0.0)
    count = 0
    for seed in (0, 1):
        with torch.no_grad():
            known = {tokens_of(sequence.ids): logprobs(model, sequence) for part in parts(seed) for sequence in part}
        for part in epoch_parts(seed):
            optimizer.param_groups[0]["lr"] = OPTIM.learning_rate * (1 - count / (2 * UPDATES))
            total = torch.stack(
                [ppo_loss(model, reference, sequence, known[tokens_of(sequence.ids)]) for sequence in part]
            ).sum()
            optimizer.zero_grad()
            (total / sum(sequence.trained_tokens for sequence in part)).backward()
            optimizer.step()
            count += 1
    return model


def test_ranks_keep_the_logprobs_before_the_first_update(ranks: list[dict[str, Any]], folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    records = {record.place: record for rank in ranks for record in rank["records"]}
    assert sum(len(rank["records"]) for rank in ranks) == len(records) == 8
    for sequence in (sequence for part in parts(0) for sequence in part):
        assert sequence.place is not None
        record = records[sequence.place]
        with torch.no_grad():
            known = logprobs(model, sequence)
        assert record.logprobs_T.tolist() == pytest.approx(known.tolist(), abs=2e-5)
        weights = (known - of_trained(sequence.behaviour_T, sequence)).exp().clamp(max=2.0)
        assert record.factors_T.tolist() == pytest.approx(weights.tolist(), abs=1e-4)
        assert record.advantages_T.tolist() == of_trained(sequence.advantages_T, sequence).tolist()
        assert not record.mask_reasons_T.any()


def test_updates_of_mini_batches_equal_a_plain_loop(trained, folder):
    plain_loop(folder / "model").save_pretrained(folder / "plain")
    start, plain = (load_file(folder / name / "model.safetensors") for name in ("model", "plain"))
    for name, tensor in trained["weights"].items():
        assert torch.allclose(tensor, plain[name], atol=1e-4), name
    assert max(float((plain[name] - start[name]).abs().max()) for name in plain) > 5e-3
    assert any(micro.prompts for share in halves(ranks=2, seed=0)[0].micro_batches for micro in share)


def test_the_clip_acts_only_with_several_updates(trained):
    for step in ("first", "second"):
        assert trained[step]["updates"] == UPDATES
        assert trained[step]["clipped"] > 0.05
        assert trained[step]["ratio"] != 1.0
    assert trained["once"]["updates"] == 1.0
    assert trained["once"]["clipped"] == 0.0
    assert trained["once"]["ratio"] == 1.0


def test_the_schedule_counts_updates_also_after_a_checkpoint(trained):
    assert trained["done"] == UPDATES
    rates = [OPTIM.learning_rate * (1 - count / (2 * UPDATES)) for count in (UPDATES - 1, 2 * UPDATES - 1)]
    assert [trained[step]["learning_rate"] for step in ("first", "second")] == pytest.approx(rates)
    assert all(torch.equal(tensor, trained["again"][name]) for name, tensor in trained["weights"].items())


def test_a_rank_makes_progress_with_every_micro_batch(trained):
    passes = trained["micro_batches"] * (1 + EPOCHS)  # once for the old policy
    assert trained["heartbeat"].progress == passes + 2  # its beginning and its end
    assert (trained["heartbeat"].doing, trained["heartbeat"].quiet_s) == ("", 0.0)


def test_an_update_that_is_skipped_leaves_the_others(trained):
    assert trained["broken"]["skipped"] == pytest.approx(1 / 3)
    assert trained["broken"]["updates"] == 2.0


def test_advantages_less_divergence_are_normalised_over_ranks(trained):
    assert trained["paid"]["skipped"] == 0.0
    assert abs(trained["paid"]["kl"]) > 1e-4  # since the start of the stage, after all those updates
    assert 0.5 < trained["paid"]["advantage_abs"] <= 1.0  # of mean square 1


def numbered(groups: list[int]) -> list[TrainingSample]:
    """Sequences of these groups, distinguished by their ids."""
    return [
        replace(TrainingSample.supervised(ids=(place, 1), trained_T=(False, True)), group=group)
        for place, group in enumerate(groups)
    ]


@pytest.mark.parametrize(
    ("groups", "count", "places"),
    [
        ([5, 5, 6, 6, 7, 8], 1, [[0, 1, 2, 3, 4, 5]]),
        ([5, 5, 6, 6, 7, 8], 2, [[0, 1, 2, 3], [4, 5]]),
        ([5, 5, 6, 6, 7, 8], 3, [[0, 1], [2, 3], [4, 5]]),
        ([5, 5, 5, 6, 6], 3, [[0], [1, 2], [3, 4]]),  # answers, as there are two groups
    ],
)
def test_mini_batches_hold_every_sequence_once(groups, count, places):
    split = mini_batches(numbered(groups), count=count)
    assert [[sequence.ids[0] for sequence in part] for part in split] == places


def test_each_epoch_has_mini_batches_of_its_own():
    groups = [group for group in range(5, 21) for _ in range(2)]

    def split(epoch: int, first: int = 5) -> list[list[int]]:
        samples = numbered([group - 5 + first for group in groups])
        return [[int(sequence.ids[0]) for sequence in part] for part in mini_batches(samples, count=4, epoch=epoch)]

    epochs = [split(epoch) for epoch in range(3)]
    assert epochs[0] == [list(range(start, start + 8)) for start in (0, 8, 16, 24)]
    for parts_of in epochs:
        assert sorted(place for part in parts_of for place in part) == list(range(32))
        assert all(part[i] + 1 == part[i + 1] for part in parts_of for i in range(0, 8, 2))  # groups stay whole
    assert len({tuple(sorted(map(tuple, map(sorted, parts_of)))) for parts_of in epochs}) == 3
    assert split(2) == epochs[2] != split(2, first=6)


def test_metrics_of_updates_are_means_and_the_last_learning_rate():
    done = [
        {"loss": 1.0, "skipped": 0.0, "learning_rate": 0.2},
        {"loss": 3.0, "skipped": 1.0, "learning_rate": 0.1},
        {"skipped": 1.0},  # nothing to train
    ]
    assert average_updates(done) == {"loss": 2.0, "skipped": pytest.approx(2 / 3), "learning_rate": 0.1, "updates": 1.0}


def paid_by_hand(rewards: list[float], kl: list[list[float]], beta: float) -> list[list[float]]:
    """REINFORCE++, eq. 8 to 10, token by token."""
    costs = [[reward - beta * sum(own[t:]) for t in range(len(own))] for reward, own in zip(rewards, kl, strict=True)]
    flat = [value for own in costs for value in own]
    mean = sum(flat) / len(flat)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in flat) / len(flat))
    return [[(value - mean) / deviation for value in own] for own in costs]


def test_reinforce_pp_normalises_after_the_divergence():
    # answers of three, one and two tokens in two micro-batches; log pi_old - log ref of each token
    kl = [[0.4, -0.1, 0.3], [0.2], [0.0, 0.5]]
    rewards = [1.0, 0.0, 1.0]
    sequences = [
        TrainingSample(
            ids=as_ids(tuple(range(len(own) + 1))),
            trained_T=as_marks((False, *[True] * len(own))),
            advantages_T=as_floats((reward,) * (len(own) + 1)),
            behaviour_T=as_floats((-1.0,) * (len(own) + 1)),
        )
        for reward, own in zip(rewards, kl, strict=True)
    ]
    micro_batches, fixed = [], []
    for rows in ([0, 1], [2]):
        (made,) = build_batch([sequences[row] for row in rows], ranks=1, micro_batch_tokens=99, pad_id=0).micro_batches[
            0
        ]
        longest = made.ids_BT.shape[1]
        ref = [[0.0, *[-1.0 - x for x in kl[row]], *[0.0] * (longest - 1 - len(kl[row]))] for row in rows]
        old_BT = torch.where(torch.from_numpy(made.weights_BT) > 0, -1.0, 0.0)
        micro_batches.append(made)
        fixed.append(FixedValues(old_BT=old_BT, ref_BT=torch.tensor(ref)))
    loss = LossConfig(advantage="reinforce_pp", kl="k1", kl_in="reward", kl_coefficient=0.5)

    def alone(totals: dict[str, torch.Tensor]) -> dict[str, float]:
        return {name: float(total) for name, total in totals.items()}

    done = subtract_divergence(fixed, micro_batches, loss=loss, summed=alone)
    expected = iter(paid_by_hand(rewards, kl, 0.5))
    for own in rows_of(done, micro_batches):
        assert own == pytest.approx(next(expected), abs=1e-5)


def rows_of(done: list[FixedValues], micro_batches: list[MicroBatch]) -> Iterator[list[float]]:
    """The advantages of each sequence's trained tokens."""
    for known, micro_batch in zip(done, micro_batches, strict=True):
        assert known.advantages_BT is not None
        for values_T, weights_T in zip(known.advantages_BT.tolist(), micro_batch.weights_BT.tolist(), strict=True):
            yield [value for value, weight in zip(values_T, weights_T, strict=True) if weight]


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        ({"clip_low": 0.1}, "rl.loss.clip_low=0.1"),
        ({"clip_high": 0.3, "dual_clip": 4.0}, "rl.loss.clip_high=0.3 and rl.loss.dual_clip=4.0"),
        ({"surrogate": "decoupled"}, "rl.loss.surrogate=decoupled"),
        ({"surrogate": "gspo", "aggregation": "sequence", "old_policy": "trainer"}, "rl.loss.surrogate=gspo"),
    ],
)
def test_a_clip_that_can_not_act_is_refused(loss, named):
    with pytest.raises(ValueError, match=f"{named} .*rl.updates_per_step or rl.epochs"):
        RlConfig(loss=LossConfig(**loss))
    RlConfig(loss=LossConfig(**loss), updates_per_step=2)
    RlConfig(loss=LossConfig(**loss), epochs=2)


def test_what_is_usual_is_never_refused():
    for surrogate in ("ppo", "gspo", "cispo", "reinforce"):
        RlConfig(loss=LossConfig(surrogate=surrogate, aggregation="sequence"))
    RlConfig(loss=LossConfig(old_policy="rollout", clip_low=0.1, dual_clip=2.0))
    RlConfig(loss=LossConfig(dual_clip=0.0))
    DistillConfig()


@pytest.mark.parametrize("objective", ["nll", "dpo", "distill"])
def test_reinforcement_learning_has_one_objective(objective):
    with refuses(f"rl.loss.objective={objective}"):
        RlConfig(loss=LossConfig(objective=objective))


LAG = ["name=x", "rl.max_lag=2"]


@pytest.mark.parametrize("settings", [[], ["rl.loss.surrogate=reinforce", "rl.epochs=2"], ["rl.loss.error_guard=1.5"]])
def test_a_lag_of_two_without_a_trust_region_is_refused(settings):
    with refuses("rl.max_lag=2", "rl.loss.token_range"):
        load_config(DEMO, [*LAG, *settings])


@pytest.mark.parametrize(
    "setting",
    [
        "rl.loss.token_range=[0.5,5]",
        "rl.loss.sequence_range=[0.9,1.1]",
        "rl.loss.old_policy=rollout",
        "rl.updates_per_step=2",
        "rl.epochs=2",
        "rl.max_lag=1",
    ],
)
def test_a_lag_of_two_needs_one_trust_region(setting):
    load_config(DEMO, [*LAG, setting])


def test_a_distillation_has_the_same_rule():
    with refuses("distill.loss.clip_low=0.1"):
        DistillConfig(loss=LossConfig(objective="distill", clip_low=0.1))


def test_there_are_not_more_updates_than_answers():
    with refuses("rl.updates_per_step=9"):
        RlConfig(groups_per_step=2, group_size=4, updates_per_step=9)
