"""Losses and gradients against TRL's trainers: the same tiny model, the same tokens, the code of both."""

import importlib.util
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from unit.learner.batches.test_pairs import gradient

from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.losses.config import LossConfig
from temper.learner.losses.corrections import Correction, mask_reasons, mask_sequences
from temper.learner.losses.dpo import dpo_loss
from temper.learner.losses.policy import Loss, PolicyTerms, policy_loss
from temper.learner.models.fresh import byte_tokenizer
from temper.learner.models.logprobs import token_entropies, token_logprobs
from temper.rollout.token_arrays import as_floats, as_ids, as_marks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="TRL is not installed; requirements/dev.txt has it"
)
TOLERANCE = 1e-6
PROMPT = 4
LENGTHS = (7, 3, 5, 6)
"""Tokens of each answer."""
ADVANTAGES = (1.5, -0.7, -2.0, 0.4)
PAD = 0


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers to prompts of one length, with the log-probabilities that an older policy and a reference gave them."""

    ids: list[list[int]]
    old_BT: torch.Tensor
    ref_BT: torch.Tensor

    def padded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and the mask of real tokens, padded on the right."""
        longest = max(len(ids) for ids in self.ids)
        rows = [[*ids, *[PAD] * (longest - len(ids))] for ids in self.ids]
        mask = [[1] * len(ids) + [0] * (longest - len(ids)) for ids in self.ids]
        return torch.tensor(rows), torch.tensor(mask)


@pytest.fixture(scope="module")
def answers(llamas: tuple[PreTrainedModel, PreTrainedModel]) -> Answers:
    """Old log-probabilities near the model's: far enough for every clip, near enough for the sequence's to vary."""
    draw = torch.Generator().manual_seed(3)
    ids = [torch.randint(3, 250, (PROMPT + length,), generator=draw).tolist() for length in LENGTHS]
    made = Answers(ids=ids, old_BT=torch.empty(0), ref_BT=torch.empty(0))
    ids_BT, _ = made.padded()
    with torch.no_grad():
        now_BT = token_logprobs(llamas[0](input_ids=ids_BT).logits, ids_BT)
    noise = [torch.randn(now_BT.shape, generator=draw) for _ in range(2)]
    scale_B1 = torch.tensor([[0.5], [0.5], [1.0], [1e-4]])
    return Answers(ids=ids, old_BT=now_BT + scale_B1 * noise[0], ref_BT=now_BT + 0.3 * noise[1])


@pytest.fixture(scope="module")
def grpo(llamas: tuple[PreTrainedModel, PreTrainedModel], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """TRL's trainer of the model, built by TRL."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    config = trl.GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("grpo")),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=2,
        num_generations=2,
    )
    return trl.GRPOTrainer(
        model=llamas[0],
        reward_funcs=_no_reward,
        args=config,
        train_dataset=datasets.Dataset.from_list([{"prompt": "1+1"}]),
        processing_class=byte_tokenizer(),
    )


def _no_reward(completions: list[str], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def ours(model: PreTrainedModel, answers: Answers, config: LossConfig) -> tuple[torch.Tensor, Loss]:
    """The mean loss of the batch as the learner computes it, from the batch that it is made of."""
    sequences = [
        TrainingSample(
            ids=as_ids(tuple(ids)),
            trained_T=as_marks(tuple(place >= PROMPT for place in range(len(ids)))),
            advantages_T=as_floats((advantage,) * len(ids)),
            behaviour_T=as_floats(tuple(answers.old_BT[row, : len(ids)].tolist())),
        )
        for row, (ids, advantage) in enumerate(zip(answers.ids, ADVANTAGES, strict=True))
    ]
    batch = build_batch(
        sequences,
        ranks=1,
        micro_batch_tokens=10**6,
        pad_id=PAD,
        aggregation=config.aggregation,
        constant_length=config.constant_length,
    )
    ((micro,),) = batch.micro_batches
    ids_BT = torch.from_numpy(micro.ids_BT)
    order = [answers.ids.index(row[: row.index(PAD) if PAD in row else None]) for row in ids_BT.tolist()]
    logits_BTV = model(input_ids=ids_BT).logits
    loss = policy_loss(
        token_logprobs(logits_BTV, ids_BT),
        torch.from_numpy(micro.weights_BT),
        torch.from_numpy(micro.advantages_BT),
        torch.from_numpy(micro.behaviour_BT),
        terms=PolicyTerms.of(config),
        ref_BT=answers.ref_BT[order] if config.kl_coefficient else None,
        entropy_BT=token_entropies(logits_BTV) if config.entropy_bonus else None,
    )
    return loss.total / batch.denominator, loss


def theirs(trainer: Any, answers: Answers) -> torch.Tensor:
    """The loss of TRL's trainer on the same answers."""
    ids_BT, mask_BT = answers.padded()
    inputs = {
        "prompt_ids": ids_BT[:, :PROMPT],
        "prompt_mask": mask_BT[:, :PROMPT],
        "completion_ids": ids_BT[:, PROMPT:],
        "completion_mask": mask_BT[:, PROMPT:],
        "advantages": torch.tensor(ADVANTAGES),
        "old_per_token_logps": answers.old_BT[:, PROMPT:],
        "ref_per_token_logps": answers.ref_BT[:, PROMPT:],
        "num_items_in_batch": torch.tensor(sum(LENGTHS)),
    }
    loss: torch.Tensor = trainer.compute_loss(trainer.model, inputs)
    return loss


def told(trainer: Any, *, loss_type: str, low: float, high: float) -> Any:
    """The trainer with these settings and all others as at the beginning."""
    trainer.loss_type, trainer.epsilon_low, trainer.epsilon_high = loss_type, low, high
    trainer.importance_sampling_level = "token"
    trainer.args.delta = None
    trainer.beta, trainer.args.use_bias_correction_kl = 0.0, False
    trainer.max_completion_length = 11
    trainer._entropy_bonus_enabled, trainer.entropy_coef = False, 0.0
    return trainer


PPO = LossConfig(old_policy="rollout", dual_clip=0.0, error_guard=0.0)


@pytest.mark.parametrize(
    ("loss_type", "aggregation"),
    [
        ("grpo", {"aggregation": "sequence"}),
        ("bnpo", {"aggregation": "token"}),
        ("dapo", {"aggregation": "token"}),
        ("dr_grpo", {"aggregation": "constant", "constant_length": 11}),
    ],
)
@pytest.mark.parametrize("dual_clip", [0.0, 1.5])
def test_the_clipped_losses_agree(grpo, llamas, answers, loss_type, aggregation, dual_clip):
    trainer = told(grpo, loss_type=loss_type, low=0.2, high=0.28)
    trainer.args.delta = dual_clip or None
    loss, watched = ours(llamas[0], answers, replace(PPO, dual_clip=dual_clip, **aggregation))
    assert 0 < watched.sums["clipped"] < watched.sums["weight"]
    check(loss, theirs(trainer, answers), llamas[0])


def test_gspo_agrees(grpo, llamas, answers):
    trainer = told(grpo, loss_type="grpo", low=3e-4, high=4e-4)
    trainer.importance_sampling_level = "sequence"
    loss, watched = ours(llamas[0], answers, LossConfig(surrogate="gspo", aggregation="sequence", error_guard=0.0))
    assert 0 < watched.sums["clipped"] < watched.sums["weight"]
    check(loss, theirs(trainer, answers), llamas[0])


def test_cispo_agrees(grpo, llamas, answers):
    trainer = told(grpo, loss_type="cispo", low=0.2, high=1.5)  # TRL's bound is that of the ratio itself
    loss, watched = ours(llamas[0], answers, LossConfig(surrogate="cispo", clip_high=0.5, error_guard=0.0))
    assert 0 < watched.sums["clipped"] < watched.sums["weight"]
    check(loss, theirs(trainer, answers), llamas[0])


def test_divergence_and_entropy_in_the_loss_agree(grpo, llamas, answers):
    trainer = told(grpo, loss_type="bnpo", low=0.2, high=0.28)
    trainer.beta = 0.1
    near = replace(PPO, kl_coefficient=0.1)
    check(ours(llamas[0], answers, near)[0], theirs(trainer, answers), llamas[0])
    trainer._entropy_bonus_enabled, trainer.entropy_coef = True, 0.05
    check(ours(llamas[0], answers, replace(near, entropy_bonus=0.05))[0], theirs(trainer, answers), llamas[0])


def test_the_negative_guard_is_trls_off_policy_mask(grpo):
    draw = torch.Generator().manual_seed(0)
    log_w_BT = torch.randn(64, 6, generator=draw)
    mask_BT = (torch.rand(64, 6, generator=draw) > 0.3).float()
    advantages_B1 = torch.randn(64, 1, generator=draw)
    kept_B1 = grpo.get_off_policy_mask(advantages_B1, log_w_BT, torch.zeros_like(log_w_BT), mask_BT, 0.1)
    guard = Correction(negative_guard=0.1)
    ours_BT = mask_sequences(mask_BT, mask_reasons(mask_BT > 0, log_w_BT, advantages_B1.expand(64, 6), guard))
    assert torch.equal(ours_BT, mask_BT * kept_B1)
    assert 0 < kept_B1.sum() < 64


def test_dpo_agrees(llamas, answers, tmp_path):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    model, reference = llamas
    trainer = trl.DPOTrainer(
        model=model,
        ref_model=reference,
        args=trl.DPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], beta=0.3),
        train_dataset=datasets.Dataset.from_list([{"prompt": "1+1=", "chosen": "2", "rejected": "3"}]),
        processing_class=byte_tokenizer(),
    )
    ids_BT, mask_BT = answers.padded()
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT, "completion_mask": mask_BT.clone()}
    inputs["completion_mask"][:, :PROMPT] = 0

    def sums_of(judge: PreTrainedModel) -> tuple[torch.Tensor, ...]:
        logprobs_BT = token_logprobs(judge(input_ids=ids_BT).logits, ids_BT)
        return (logprobs_BT * inputs["completion_mask"]).sum(-1).chunk(2)  # two chosen answers, then two rejected ones

    with torch.no_grad():
        known = sums_of(reference)
    loss = dpo_loss(*sums_of(model), *known, beta=0.3)
    check(loss.total / loss.sums["weight"], trainer.compute_loss(model, inputs), model)


def check(loss: torch.Tensor, expected: torch.Tensor, model: PreTrainedModel) -> None:
    """Equal in value and in the gradient of every parameter."""
    ours_P, theirs_P = gradient(loss, model), gradient(expected, model)
    assert loss.item() == pytest.approx(expected.item(), abs=TOLERANCE)
    assert theirs_P.abs().max() > 1e-3
    assert torch.allclose(ours_P, theirs_P, rtol=0.0, atol=TOLERANCE)
