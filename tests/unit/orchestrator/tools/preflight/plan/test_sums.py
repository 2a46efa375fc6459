"""The sums of a plan by hand: the seconds of a step, the memory of ranks, and the stages that hours cover."""

from dataclasses import replace
from typing import Literal

import pytest
from support.plans import NANO_9B, NANO_30B, TWO, demo_on, known, plan_on
from support.public_models import PUBLIC
from transformers import Qwen3Config

from temper.learner.config import LearnerConfig, LoraConfig, OptimConfig
from temper.orchestrator.pipeline.estimate.limits import Limit, run_limits
from temper.orchestrator.pipeline.estimate.memory import copied_bytes, optimizer_bytes, rank_memory
from temper.orchestrator.pipeline.estimate.model import count_model
from temper.orchestrator.pipeline.estimate.run_plan import Plan

PARAMETERS, HEAD, STACK = PUBLIC[NANO_30B][1], 131_072 * 2688, 128 * 2688 * 1856
"""Parameters of Nemotron 3 Nano 30B-A3B, of its output layer, and of one of the two stacks of experts of its 23 layers."""
COUNT, EMBEDDING, LARGEST_BUCKET = PUBLIC[NANO_9B][1], 131_072 * 4480, 500_000_000
"""Parameters of the 9 B hybrid, of its largest tensor, which is also its largest layer, and of a full bucket."""


def test_the_seconds_of_an_8b_are_those_worked_out_by_hand() -> None:
    """A pass reads 16.4 GB of weights, and 147,456 bytes for each of 1,400 tokens of 64 sequences: 29.6 GB at 2,345 GB/s.

    So 512 answers of 2,000 tokens are 16,000 passes of 12.62 ms, shared by the engines. Prompts add 0.68 s, since one answer
    of 16 computes all 400 tokens, and the others 16. The learner has 8 operations for each of 1,228,800 tokens and of 7.92
    billion parameters and scores.
    """
    learner = ("ranks=1", "zero_stage=1", "recompute=full", "shared_prompts=false", "offload=none", "bf16=true")
    sizes = ("rl.groups_per_step=32", "rl.group_size=16", "rollout.engine.max_sequences=64")
    given = (*(f"learner.{one}" for one in learner), *sizes)
    assumed = ("answer_tokens=2000", "prompt_tokens=400", "pass_ms=0")
    found = plan_on("8xH100-80G", "Qwen/Qwen3-8B", *given, assumed=assumed)
    time, fleet = known(found.time), known(found.fleet)
    assert fleet.pass_s(fleet.batch) == pytest.approx(12.62e-3, rel=1e-3)
    assert time.generate_s == pytest.approx((16_000 * 12.62e-3 + 0.68) / found.wanted.engines, rel=0.01)
    assert time.learn_s == pytest.approx(262.4, rel=1e-3)
    assert time.step_s == max(time.generate_s + time.load_s, time.learn_s + time.publish_s)
    estimate = 300 * time.step_s / 3600
    assert time.hours == pytest.approx((0.9 * estimate, 2 * estimate))


@pytest.mark.parametrize("ranks", [8, 12])
def test_ranks_that_one_machine_holds_send_by_its_own_links(ranks: int) -> None:
    """Engines may lie on any machine."""
    given = (f"learner.ranks={ranks}", f"rollout.workers={16 - ranks}", "learner.zero_stage=3")
    fleet = known(plan_on("2x8xH100-80G", NANO_9B, *given).fleet)
    fleet = replace(fleet, assumed=replace(fleet.assumed, tensor_ms=0.0))
    slow = replace(fleet, assumed=replace(fleet.assumed, network_gbs=5.0))
    assert (slow.learn_s > fleet.learn_s) == (ranks > 8)
    slow, fast = (replace(one, push=replace(one.push, transport="broadcast")) for one in (slow, fleet))
    assert slow.push_s[1] == pytest.approx(10 * fast.push_s[1])


@pytest.mark.parametrize(("unit", "found"), [(None, 496), (1312, 0), (512, 0), (256, 256)])
def test_prompts_share_whole_units_of_the_cache_alone(usual: Plan, unit: int | None, found: int) -> None:
    """A prompt of 512 tokens for 16 answers. Its last token is always computed."""
    fleet = known(usual.fleet)
    extra = {} if unit is None else {"prefix_match_unit": unit}
    cached = replace(
        fleet, engine=replace(fleet.engine, extra=extra), memory=replace(fleet.memory, caches_prefixes=True)
    )
    alone = replace(fleet, memory=replace(fleet.memory, caches_prefixes=False), work=replace(fleet.work, turns=1))
    assert cached.prompt_s == pytest.approx((512 + 15 * (512 - found)) / (16 * 512) * alone.prompt_s)


def test_without_cached_prefixes_each_turn_computes_the_earlier_ones_again(usual: Plan) -> None:
    """Four turns of 100 tokens after a prompt of 50: 50 + 150 + 250 + 350 tokens for 400 sampled ones."""
    fleet = known(usual.fleet)
    work = replace(fleet.work, turns=4, prompt_tokens=50, answer_tokens=400)
    alone = replace(fleet, memory=replace(fleet.memory, caches_prefixes=False), work=work)
    once = replace(alone, work=replace(work, turns=1))
    assert alone.prompt_s == pytest.approx((50 + 150 + 250 + 350) / 50 * once.prompt_s)


def test_shared_experts_are_sent_to_those_with_the_same_and_tokens_to_their_owners() -> None:
    """16 ranks on two hosts. All-reduces at 280 GB/s have 15/16 of a tensor, or half of an expert that two ranks have.

    Each of 48 layers sends a token's 2,048 numbers to 8 experts and back, in three passes, 7/8 of them to other ranks.
    """
    settings = ("ranks=16", "zero_stage=2", "expert_parallel=8", "recompute=full", "offload=none")
    plan = plan_on("4x8xH100-80G", "Qwen/Qwen3-30B-A3B", *(f"learner.{one}" for one in settings))
    shared = known(plan.fleet)
    alone = replace(shared, learner=replace(shared.learner, expert_parallel=1))
    work, routed = shared.work, plan.model.parts["routed experts"]
    tokens = work.groups * (work.prompt_tokens + work.group_size * work.answer_tokens) / 16
    passes = tokens / shared.learner.micro_batch_tokens
    spared = routed * (15 / 16 - 1 / 2) * (2 + 2 * 4 * passes) / (0.7 * 400e9)
    brought = 48 * 2048 * 8 * 2 * 2 * 3 * 7 / 8 * tokens / (0.7 * 450e9)
    assert alone.learn_s - shared.learn_s == pytest.approx(spared - brought, rel=1e-6)


def test_muon_and_averages_are_counted_if_any_stage_uses_them() -> None:
    wide = (
        "model.fresh={pattern: '-', hidden_size: 512, intermediate_size: 2048, attention_heads: 4, key_value_heads: 2}"
    )
    settings = ("sft.optim.kind=muon", "sft.optim.kind=adamw", "rl.optim.ema_decay=0.99")
    plans = [demo_on(24.0, wide, setting) for setting in settings]
    ranks = [known(plan.rank) for plan in plans]
    assert ranks[0].transfers == 4 * 3 * 512 * 2048  # Newton-Schulz on the matrix of the MLP
    assert ranks[1].transfers < ranks[0].transfers
    assert ranks[0].optimiser == ranks[1].optimiser  # `rl` uses AdamW in both
    for found, state in (
        (ranks[2].optimiser, ranks[1].optimiser),
        (plans[2].model.state_bytes, plans[1].model.state_bytes),
    ):
        assert found - state == 4 * plans[2].model.trained


def test_two_buckets_of_a_push_are_counted_on_both_sides() -> None:
    """The largest tensor of the 30B, its embedding of 705 MB, is alone in its bucket."""
    plan = plan_on("16x8xH100-80G", NANO_30B, recipe=TWO)
    assert (plan.push.device_bytes, known(plan.rank).push) == (2 * 2 * HEAD, 2 * 2 * HEAD)
    share = f"{1 - 1 / 80:.4f}"  # one GiB is left
    (fits,) = _buckets(plan)
    assert fits.holds
    (short,) = _buckets(
        plan_on("16x8xH100-80G", NANO_30B, f"rollout.engine.gpu_memory_utilization={share}", recipe=TWO)
    )
    # two buckets (1.41 GB), a layer's 128 x 2 matrices of 2688 x 1856 (2.55 GB) and half of them again: 5.2 of 85.9 GB
    assert short.remedy == "rollout.engine.gpu_memory_utilization=0.93"
    local = plan_on("8xH100-80G", NANO_9B, "learner.transport=shared_memory")
    assert (local.push.device_bytes, _buckets(local)) == (0, [])


def _buckets(plan: Plan) -> list[Limit]:
    return [limit for limit in run_limits(plan) if limit.what == "buckets of a push"]


def test_a_rank_loads_its_own_part_one_tensor_at_a_time() -> None:
    """31.6 B parameters in bfloat16 fit 48 GB while they are loaded on 128 ranks, and the main memory of a machine."""
    plan = plan_on("16x8xL40S-48G", NANO_30B, recipe=TWO)
    learner = replace(plan.config.learner, zero_stage=3, ranks=128, offload="none")
    rank = plan.rank_with(learner)
    assert rank.loading == 3 * 2**30 + 2 * PARAMETERS // 128 + (4 + 4 + 2) * STACK
    assert rank.reading == 2 * PARAMETERS // 128 + 3 * 4 * STACK
    whole = plan.rank_with(replace(learner, zero_stage=2))
    assert whole.loading == 3 * 2**30 + 2 * PARAMETERS + (4 + 4 + 2) * STACK
    assert whole.reading == 3 * 4 * STACK
    assert plan.host.reading == 8 * known(plan.rank).reading


@pytest.mark.parametrize(
    ("stage", "bf16", "gradients", "buckets", "offloaded"),
    [
        (1, True, 4 * COUNT, 4 * LARGEST_BUCKET + 2 * EMBEDDING, 4 + 8 + 4 + 2),
        (2, True, COUNT, 2 * LARGEST_BUCKET + 2 * EMBEDDING, 4 + 8 + 4 + 2),
        (2, False, 0, 4 * LARGEST_BUCKET + 4 * EMBEDDING, 4 + 8 + 2 * 4 + 4),  # added up in main memory too
        (3, True, 0, 4 * LARGEST_BUCKET, 4 + 8 + 2 * 4 + 2),  # a sum and a copy; the weights
    ],
)
def test_offloaded_gradients_are_those_worked_out_by_hand(
    usual: Plan, stage: Literal[1, 2, 3], bf16: bool, gradients: int, buckets: int, offloaded: int
) -> None:
    """A quarter of the float32 weights, moments, gradients and the weights that return are in main memory."""
    rank = usual.rank_with(replace(usual.config.learner, zero_stage=stage, ranks=4, bf16=bf16, offload="cpu"))
    assert (rank.gradients, rank.buckets) == (gradients, buckets)
    assert rank.offloaded == pytest.approx(offloaded * COUNT / 4, rel=1e-6)


def test_spread_experts_of_a_30b_take_a_quarter_and_stay_spread() -> None:
    settings = ("ranks=4", "zero_stage=1", "expert_parallel=4", "bf16=true", "offload=none")
    plan = plan_on("8xH100-80G", NANO_30B, *(f"learner.{setting}" for setting in settings))
    rank, own = plan.rank_with(plan.config.learner), PARAMETERS - 23 * 2 * STACK * 3 / 4
    assert (rank.weights, rank.gradients) == pytest.approx((2 * own, 4 * own), rel=1e-3)
    assert rank.optimiser == pytest.approx((4 + 8) * PARAMETERS / 4, rel=1e-3)
    (memory,) = (limit for limit in run_limits(plan) if limit.what == "a rank's memory")
    assert "zero_stage" not in memory.remedy
    assert "offload" not in memory.remedy


def small_config(*, layers: int, vocabulary: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
    )


@pytest.mark.parametrize(
    ("stage", "ranks", "bf16", "built", "transfers"),
    [
        (0, 1, False, 4, 4),  # weights; gradients in one tensor
        (1, 1, True, 2 + 4 + 4 + 4, 0),  # bfloat16 and float32 weights, gradients of all passes, and the mapped file
        (2, 2, True, 2 + 4 / 2 + 4 / 2, 2 + 4),  # weights, half a copy, half of the mapped file; joined slices, float32
        (2, 2, False, 4 + 4, 4),  # weights twice while they are joined, or once with half a copy and half a gradient
        (3, 2, False, 3 * 4 / 2 + 2 * 4, 2 * 4),  # halves of weights, copy and gradient; gathered, with a copy
    ],
)
def test_a_small_model_on_cpus_is_planned_by_hand(
    stage: Literal[0, 1, 2, 3], ranks: int, bf16: bool, built: float, transfers: int
) -> None:
    config = small_config(layers=2, vocabulary=288)
    learner = LearnerConfig(zero_stage=stage, ranks=ranks, bf16=bf16)
    model = count_model(config, learner, name="small")
    rank = rank_memory(model, learner, [OptimConfig()], pass_tokens=8, gpu=False)
    assert (rank.reading, rank.transfers) == (built * model.parameters, transfers * model.parameters)
    if stage == 2 and not bf16:  # adapters alone are joined and copied; the weights stay in the memory of the file
        learner = replace(learner, lora=LoraConfig(rank=8))
        adapted = count_model(config, learner, name="small")
        rank = rank_memory(adapted, learner, [OptimConfig()], pass_tokens=8, gpu=False)
        assert rank.reading == 4 * model.parameters + 2 * 4 * adapted.trained
        assert rank.buckets == 4 * adapted.trained


def test_muon_on_two_ranks_is_planned_by_hand() -> None:
    """Attention has four square matrices, and the MLP three with four times as many entries.

    Newton-Schulz has two such matrices and four of 64 x 64. The rank also has a gathered one, and its parts of two.
    """
    learner, mlp, square, muon = LearnerConfig(zero_stage=2, ranks=2), 64 * 256, 64 * 64, OptimConfig(kind="muon")
    model = count_model(small_config(layers=1, vocabulary=32), learner, name="small")
    rank = rank_memory(model, learner, [muon], pass_tokens=8, gpu=False)
    assert rank.transfers == 4 * (2 * mlp + 4 * square + mlp + 2 * mlp)
    assert rank.reading == (4 + 4 + 4 / 2) * model.parameters  # the file's memory, joined weights, and half a copy
    assert rank.optimiser == (4 * model.trained + 8 * model.trained - 4 * (3 * mlp + 4 * square)) // 2
    saved = (4 + 8) * model.trained - 4 * (3 * mlp + 4 * square)  # weights, and a mean or two
    assert copied_bytes(model, learner, [muon], ranks=1) == saved // 2
    with_adapters = replace(learner, lora=LoraConfig(rank=8))
    adapted = count_model(small_config(layers=1, vocabulary=32), with_adapters, name="small")
    # each of two ranks has a merged copy, next to its half of the checkpoint
    assert copied_bytes(adapted, with_adapters, [muon], ranks=2) == 3 * adapted.saved_bytes
    assert optimizer_bytes(adapted, muon) == 4 * adapted.trained  # all adapters are matrices


def test_adapters_that_travel_alone_are_pushed_with_one_copy_of_the_weights() -> None:
    lora = ("learner.transport=shared_memory", "learner.lora.rank=16")
    alone, whole = (
        plan_on("8xH100-80G", NANO_9B, *lora, f"learner.wire_dtype={dtype}") for dtype in ("bfloat16", "float32")
    )
    adapters = 2 * alone.model.trained
    assert (alone.push.sent, alone.host.push) == (adapters, alone.push.nbytes + 2 * adapters)
    assert (whole.push.sent, whole.host.push) == (whole.push.nbytes, 2 * whole.push.nbytes)


def test_a_loop_has_no_passes_of_a_reference_that_another_stage_has() -> None:
    alone, after = (
        plan_on(
            "8xH100-80G",
            NANO_9B,
            f"stages={stages}",
            "dpo.data=pairs.jsonl",
            "learner.micro_batch_tokens=8192",
        )
        for stages in ("[init,rl]", "[init,dpo,rl]")
    )
    learners = (alone.config.learner, replace(alone.config.learner, lora=LoraConfig(rank=8)))
    held = [[plan.rank_with(learner).reference for learner in learners] for plan in (alone, after)]
    assert held[0] == [0, 0]
    assert held[1][0] > 0  # a rank has memory for it
    assert held[1][1] == 0  # the model without adapters is the reference
    away = replace(alone.config.learner, zero_stage=3, offload="cpu")
    ranks = [plan.rank_with(away) for plan in (alone, after)]
    assert [rank.reference for rank in ranks] == [0, 0]  # offloaded to main memory with the model
    assert ranks[1].offloaded - ranks[0].offloaded == 2 * alone.model.parameters // away.ranks
    assert after.fleet == alone.fleet


def test_hours_name_the_stages_that_they_are_not_of() -> None:
    stages = "stages=[init,sft,rl,{rl: {name: rl_2, steps: 1000}},eval]"
    plan = plan_on("8xH100-80G", NANO_9B, stages)
    assert plan.left_out == ("sft", "rl_2", "eval-rl_2")
    assert (known(plan.time).work.stage, known(plan.time).work.steps) == ("rl", 300)
