"""Distillation: a real rank against a plain computation, its teacher through a checkpoint, and refused teachers."""

import asyncio
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny_models
from support.refusals import refuses
from transformers import AutoModelForCausalLM, PreTrainedModel
from unit.orchestrator.loop.test_buffer import group, mixture

from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models.fresh import byte_tokenizer
from temper.learner.update import compute_loss
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import free_port
from temper.orchestrator.config.loop import DistillConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.pipeline.config import Config, load_config
from temper.orchestrator.pipeline.plan import instances
from temper.orchestrator.stages.stage import StartCheck
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import WeightVersion

DEMO = Path("configs/demo.yaml")
OPTIM = OptimConfig(learning_rate=1e-3, warmup_steps=0)
DISTILL = LossConfig(objective="distill", kl="k1")
LENGTHS = (21, 16, 13, 8)
BESIDE = {16: 0.5, 13: -0.2}
"""Logprob difference of engine and trainer, by the length of a sequence."""


def ids_of(length: int) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(3, 250) for _ in range(length)]


def plain_logprobs(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Return log pi of each token but the first, with transformers and torch alone."""
    logs_TV = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return logs_TV[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]


def batch(student: PreTrainedModel, *, tokens: int = 40) -> TrainBatch:
    """Build a batch with the answers in the second halves. Its advantages must have no effect."""
    rows = []
    for number, length in enumerate(LENGTHS):
        with torch.no_grad():
            known_T = [math.nan, *plain_logprobs(student, ids_of(length)).tolist()]
        rows.append(
            TrainingSample(
                ids=as_ids(ids_of(length)),
                trained_T=as_marks(tuple(place >= length // 2 for place in range(length))),
                advantages_T=as_floats((float(number),) * length),
                behaviour_T=as_floats(
                    tuple(
                        known_T[place] - BESIDE.get(length, 0.0) if place >= length // 2 else math.nan
                        for place in range(length)
                    )
                ),
            )
        )
    return build_batch(rows, ranks=1, micro_batch_tokens=tokens, pad_id=0)


def expected(student: PreTrainedModel, teacher: PreTrainedModel) -> tuple[torch.Tensor, float]:
    """-(1 / tokens) sum of min(pi / mu, 2) sg(log pi_teacher - log pi) log pi, and the mean of log pi - log pi_teacher."""
    total, divergence, count = torch.zeros(()), 0.0, 0
    for length in LENGTHS:
        own_T = plain_logprobs(student, ids_of(length))[length // 2 - 1 :]
        with torch.no_grad():
            gap_T = plain_logprobs(teacher, ids_of(length))[length // 2 - 1 :] - own_T
        total = total - math.exp(BESIDE.get(length, 0.0)) * (gap_T * own_T).sum()
        divergence, count = divergence - gap_T.sum().item(), count + len(own_T)
    return total / count, divergence / count


def gradient(model: PreTrainedModel) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The gradient by hand, from the rank's loss, and from its step. Then train towards the teacher and resume midway."""
    folder = tmp_path_factory.mktemp("distillation")
    torch.manual_seed(0)
    tiny_models.llama(folder / "student")
    torch.manual_seed(1)
    tiny_models.qwen3(folder / "teacher")
    plain, judge = (AutoModelForCausalLM.from_pretrained(folder / name).eval() for name in ("student", "teacher"))
    loss, divergence = expected(plain, judge)
    loss.backward()

    rank = TrainerWorker(0, 1, "127.0.0.1", free_port(), LearnerConfig())
    teacher = str(folder / "teacher")
    rank.load(str(folder / "student"), optim=OPTIM, total_steps=9, teacher_dir=teacher)
    engine = rank._engine()
    whole = batch(plain, tokens=10**6)
    ((micro_batch,),) = whole.micro_batches
    micro = compute_loss(engine, rank._replay(), micro_batch, config=DISTILL, reference=rank._reference())
    engine.backward(micro.total / whole.denominator)
    found = gradient(engine.model)

    rank.load(str(folder / "student"), optim=OPTIM, total_steps=9, teacher_dir=teacher)
    steps = [rank.train_step(batch(plain).share(rank.rank), loss=DISTILL) for _ in range(2)]
    rank.save(str(folder / "saved"))
    steps += [rank.train_step(batch(plain).share(rank.rank), loss=DISTILL) for _ in range(2)]
    rank.load(str(folder / "saved"), optim=OPTIM, total_steps=9, teacher_dir=teacher)
    rank.restore(str(folder / "saved"))
    continued = [rank.train_step(batch(plain).share(rank.rank), loss=DISTILL) for _ in range(2)]
    rank.close()
    return {
        "plain": gradient(plain),
        "found": found,
        "divergence": divergence,
        "steps": steps,
        "continued": continued,
    }


def test_the_gradient_is_that_of_a_plain_computation(story: dict[str, Any]) -> None:
    assert torch.allclose(story["found"], story["plain"], rtol=0.0, atol=1e-6)
    assert story["plain"].abs().max() > 1e-3
    assert story["steps"][0]["grad_norm"] == pytest.approx(story["plain"].norm().item(), rel=1e-4)


def test_the_metric_is_the_reverse_divergence_of_a_token_and_the_student_comes_nearer(story: dict[str, Any]) -> None:
    first, *_, last = story["steps"]
    assert first["kl"] == pytest.approx(story["divergence"], abs=1e-5)
    assert last["advantage_abs"] < 0.9 * first["advantage_abs"]


def test_a_continued_stage_keeps_its_teacher(story: dict[str, Any]) -> None:
    for name in ("loss", "kl"):
        assert [step[name] for step in story["continued"]] == [step[name] for step in story["steps"][2:]]


def test_a_group_without_signal_and_a_lone_answer_are_trained_on() -> None:
    async def kept(min_answers: int, max_replaced_groups: int) -> int:
        buffer, source = (
            Buffer(groups_per_step=2, max_lag=0, max_replaced_groups=max_replaced_groups, min_answers=min_answers),
            mixture(),
        )
        version = VersionCell(WeightVersion(step=0))
        for rewards in ([1.0, 1.0], [0.0]):
            await buffer.put(group(await buffer.admit(source, version), rewards))
        return 2 - buffer.dropped.zero_advantage - buffer.dropped.failed

    assert asyncio.run(kept(1, 0)) == 2
    assert asyncio.run(kept(2, 9)) == 0


(DISTILLING,) = instances(["distill"])


def told(*overrides: str) -> Config:
    return load_config(DEMO, ["stages=[init,distill]", *overrides])


def check_teacher(config: Config) -> None:
    path = config.model.path
    tokenizer = byte_tokenizer() if path is None else load_tokenizer(Path(path))
    start = StartCheck(config=config, name="distill", tokenizer=tokenizer, longest=None)
    DISTILLING.stage.check(config.settings(DISTILLING), start)


def test_a_teacher_of_another_vocabulary_is_refused_with_both_names_and_the_remedy(tmp_path: Path) -> None:
    student, teacher = tiny_models.llama(tmp_path / "student"), tiny_models.qwen3(tmp_path / "teacher")
    check_teacher(told(f"distill.teacher={teacher}"))  # same tokenizer as the fresh model
    config = told(f"distill.teacher={teacher}", f"model.path={student}")
    check_teacher(config)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<verdict>"])
    tokenizer.save_pretrained(teacher)
    with pytest.raises(ValueError, match=f"(?s){teacher} .*{student} .*'<verdict>'"):
        check_teacher(config)
    with pytest.raises(ValueError, match=f"{teacher}"):
        check_teacher(told(f"distill.teacher={teacher}"))


def test_a_teacher_that_knows_fewer_ids_than_the_student_may_say_is_refused(tmp_path: Path) -> None:
    student, teacher = tiny_models.llama(tmp_path / "student"), tiny_models.qwen3(tmp_path / "teacher")
    facts = json.loads((student / "config.json").read_text(encoding="utf-8"))
    (student / "config.json").write_text(json.dumps(facts | {"vocab_size": 296}), encoding="utf-8")
    with pytest.raises(ValueError, match="288 .* 296"):
        check_teacher(told(f"distill.teacher={teacher}", f"model.path={student}"))


def test_a_teacher_that_is_no_whole_model_is_refused(tmp_path: Path) -> None:
    for teacher in (tmp_path, tiny_models.qwen3(tmp_path / "cut")):
        if (weights := teacher / "model.safetensors").exists():
            weights.write_bytes(weights.read_bytes()[:-1])
        with pytest.raises(ValueError, match=f"distill.teacher={teacher}"):
            check_teacher(told(f"distill.teacher={teacher}"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("stages=[init,distill]", "distill.teacher"),
        ("distill.loss.objective=policy", "distill.loss.objective=policy"),
        ("distill.loss.kl_coefficient=0.1", "distill.loss.kl_coefficient=0.1"),
        ("distill.loss.advantage=grpo", "distill.loss.advantage=grpo"),
        ("distill.group_size=0", "distill.group_size=0"),
        ("distill.steps=0", "distill.steps=0"),
        ("distill.thinking.budget=0.5", "distill.thinking.budgets"),
        ("stages=[init,distill] distill.shares.maths=1", "distill.shares.maths"),
        ("rl.loss.objective=distill", "rl.loss.objective=distill"),
        (
            "stages=[init,distill] learner.ranks=4 distill.groups_per_step=3 distill.group_size=1",
            "learner.ranks=4",
        ),
    ],
)
def test_impossible_settings_are_refused(overrides: str, said: str) -> None:
    with refuses(said):
        load_config(DEMO, overrides.split())


def test_what_distillation_needs_matters_only_where_it_is_to_run() -> None:
    config = load_config(DEMO, [])
    assert config.section(DistillConfig).loss.objective == "distill"
    with pytest.raises(ValueError, match=r"distill\.teacher"):
        config.require_stage(DISTILLING)
