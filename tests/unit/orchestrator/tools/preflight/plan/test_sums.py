"""The sums of a plan by hand: which side limits a step, what ZeRO sends, and which stages are in hours and price."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from support.public_models import NANO_9B, NANO_30B

from temper.learner.config import LoraConfig
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import named_site
from temper.orchestrator.tools.preflight.plan.limits import run_limits
from temper.orchestrator.tools.preflight.plan.plan import make_plan, planned_config
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.step_time import learning, prompt_seconds, pushing
from temper.orchestrator.tools.preflight.plan.work import Work

EIGHT, TWO = Path("configs/recipes/eight_gpus.yaml"), Path("configs/recipes/two_hosts.yaml")
WORK = Work(
    stage="rl",
    steps=10,
    groups=4,
    group_size=2,
    in_flight=16,
    prompt_tokens=0.0,
    answer_tokens=100.0,
    longest_answer=100.0,
    kept=1.0,
    lag=1.0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nano")
    (made / "config.json").write_text(json.dumps(NANO_9B))
    return made


@pytest.fixture(scope="module")
def planner(folder: Path) -> Planner:
    site = named_site("8xH100-80G", host_gib_per_gpu=128.0, shm_gib=1.0)
    config, model = planned_config(EIGHT, [f"model.path={folder}"], site)
    return Planner(config, model, site, Assumptions())


@pytest.mark.parametrize(
    ("stage", "a_parameter"),
    [
        (0, 3 * 2 * 4),  # three updates, float32 gradients, added up on every rank: there and back
        (1, 3 * (2 * 4 + 2)),  # and the updated weights in bfloat16
        (2, 2 * 5 * 2 * 4 + 3 * 2),  # added up after each of 2 epochs x 5 passes
        (3, 2 * 5 * (4 + 2 * 2) + 5 * 2),  # added up to shares; gathered both ways, and for the old policy's scores
    ],
)
def test_what_zero_sends_is_counted_by_hand(planner: Planner, stage: Literal[0, 1, 2, 3], a_parameter: int) -> None:
    fleet = planner.fleet
    assert fleet is not None
    count = fleet.model.parameters
    assert fleet.model.trained == count
    learner = replace(planner.config.learner, ranks=4, zero_stage=stage, bf16=stage > 0, micro_batch_tokens=1000)
    fleet = replace(fleet, learner=replace(learner, shared_prompts=False), updates=3, scores=1.0, scored=count)
    work = replace(WORK, groups=50, group_size=4, epochs=2)  # 20,000 tokens: 5 passes of each rank
    given = planner.assumptions
    sent_s = learning(fleet, work, given) - learning(fleet, work, replace(given, link_share=1e15))
    assert sent_s == pytest.approx(
        a_parameter * count * 3 / 4 / (given.link_share * fleet.card.link_gbs * 1e9), rel=1e-6
    )


@pytest.mark.parametrize("ranks", [8, 12])
def test_ranks_that_one_machine_holds_send_by_its_own_links_wherever_engines_lie(ranks: int, folder: Path) -> None:
    given = (f"model.path={folder}", f"learner.ranks={ranks}", f"rollout.workers={16 - ranks}", "learner.zero_stage=3")
    site = named_site("2x8xH100-80G", host_gib_per_gpu=128.0, shm_gib=1.0)
    planner = Planner(*planned_config(EIGHT, given, site), site, Assumptions())
    fleet, usual, slow = planner.fleet, planner.assumptions, replace(planner.assumptions, network_gbs=5.0)
    assert fleet is not None
    assert fleet.push.transport == "broadcast"
    assert (learning(fleet, WORK, slow) > learning(fleet, WORK, usual)) == (ranks > 8)
    wire_s = [pushing(fleet, replace(given, tensor_ms=0.0))[1] for given in (usual, slow)]
    assert wire_s[1] == pytest.approx(10 * wire_s[0])


def of_30b(folder: Path, gpus: str, *given: str) -> Planner:
    """Nemotron 3 Nano 30B-A3B by its recipe."""
    (folder / "config.json").write_text(json.dumps(NANO_30B))
    site = named_site(gpus, host_gib_per_gpu=128.0, shm_gib=1.0)
    return Planner(*planned_config(TWO, [f"model.path={folder}", *given], site), site, Assumptions())


HIDDEN, MAMBAS, EXPERT_LAYERS, ATTENTIONS = 2688, 23, 23, 6
ROUTER, EXPERT = 128 * HIDDEN, 2 * HIDDEN * 1856
MAMBA = HIDDEN * (2 * 4096 + 2 * 8 * 128 + 64) + 5 * (4096 + 2 * 8 * 128) + 3 * 64 + 4096 + 4096 * HIDDEN + HIDDEN
ATTENTION = HIDDEN * (2 * 4096 + 2 * 256) + HIDDEN
BESIDE = MAMBAS * MAMBA + ATTENTIONS * ATTENTION + EXPERT_LAYERS * (ROUTER + 2 * HIDDEN * 3712 + HIDDEN) + HIDDEN
HEAD = 131072 * HIDDEN
ACTIVE, PARAMETERS = BESIDE + HEAD + EXPERT_LAYERS * 6 * EXPERT, BESIDE + 2 * HEAD + EXPERT_LAYERS * 128 * EXPERT
"""Of Nemotron 3 Nano 30B-A3B, worked out from its `config.json`."""


def test_the_seconds_of_learning_of_a_9b_hybrid_are_those_worked_out_by_hand(planner: Planner) -> None:
    """1,024 answers of 6,400 tokens: 8 operations a parameter and token at 0.3 of 989.4 T on 4 ranks. 50 passes a rank, each of
    which gathers 2 bytes a parameter twice and adds up 4, of which three quarters come by 0.7 of 450 GB/s.
    """
    assert planner.fleet is not None
    assert planner.work is not None
    products = 1024 * 6400 * 8 * (8_301_024_768 + 2 * 4 * 40 * 128 * 3200) / (0.3 * 989.4e12 * 4)
    sent = 50 * (2 * 2 + 4) * 8_888_227_328 * 3 / 4 / 315e9
    assert (round(products, 1), round(sent, 1)) == (372.4, 8.5)
    learn_s = learning(planner.fleet, planner.work, planner.assumptions)
    assert learn_s == pytest.approx(products + sent, rel=1e-6)
    assert planner.rates is not None
    assert planner.rates.flops_used == pytest.approx(0.3 * products / learn_s)


def test_the_seconds_of_a_30b_on_sixteen_machines_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    """64 ranks on 8 machines: 2,048 answers of 8,448 tokens are 8.25 passes a rank. A machine has 8 adapters of 50 GB/s, less
    than its links. Each expert comes as two tensors.
    """
    planner = of_30b(tmp_path, "16x8xH100-80G")
    fleet, work, usual = planner.fleet, planner.work, planner.assumptions
    assert fleet is not None
    assert work is not None
    assert (fleet.learner.ranks, fleet.model.parameters, fleet.model.active) == (64, PARAMETERS, ACTIVE)
    products = 2048 * 8448 * 8 * (ACTIVE + 2 * ATTENTIONS * 4096 * 4224) / (0.1 * 989.4e12 * 64)
    sent = 8.25 * (2 * 2 + 4) * PARAMETERS * 63 / 64 / (0.7 * 8 * 50e9)
    assert (round(products), round(sent, 1)) == (75, 7.3)
    assert learning(fleet, work, usual) == pytest.approx(products + sent, rel=1e-6)
    tensors = EXPERT_LAYERS * (128 * 2 + 4) + MAMBAS * 9 + ATTENTIONS * 5 + 3
    publish_s, load_s = pushing(fleet, usual)
    assert publish_s == 0
    assert load_s == pytest.approx(tensors * 0.6e-3 + 2 * PARAMETERS / 35e9, rel=1e-3)
    assert 4 < load_s < 7


def test_an_offloaded_gradient_comes_and_goes_by_pcie_in_each_pass(tmp_path: Path) -> None:
    planner = of_30b(tmp_path, "2x8xH100-80G")
    fleet, work, usual = planner.fleet, planner.work, planner.assumptions
    assert fleet is not None
    assert work is not None
    assert (fleet.learner.offload, fleet.learner.ranks) == ("cpu", 8)
    held = replace(fleet, learner=replace(fleet.learner, offload="none"))
    passes = 2048 * 8448 / 8 / 32768
    away_s = learning(fleet, work, usual) - learning(held, work, usual)
    assert away_s == pytest.approx(passes * 2 * 4 * fleet.model.trained / 8 / 25e9, rel=1e-6)


@pytest.mark.parametrize(("unit", "found"), [(None, 496), (1312, 0), (512, 0), (256, 256)])
def test_prompts_share_whole_units_of_the_cache_alone(planner: Planner, unit: int | None, found: int) -> None:
    """A prompt of 512 tokens, of which the last is always computed, for 16 answers."""
    fleet, work = planner.fleet, planner.work
    assert fleet is not None
    assert work is not None
    assert (work.prompt_tokens, work.group_size) == (512, 16)
    extra = {} if unit is None else {"prefix_match_unit": unit}
    fleet = replace(fleet, engine=replace(fleet.engine, extra=extra))
    computed = (512 + 15 * (512 - found)) / 16 / work.answer_tokens
    each = 2 * fleet.model.active / (0.5 * 989.4e12)
    assert prompt_seconds(fleet, work, planner.assumptions) == pytest.approx(computed * each)


def test_a_rank_holds_the_whole_model_while_it_is_loaded_at_stage_3(tmp_path: Path) -> None:
    """However many ranks there are, 31.6 B parameters in bfloat16 do not fit 48 GB."""
    planner = of_30b(tmp_path, "16x8xL40S-48G")
    rank = planner.rank
    assert rank is not None
    assert (rank.loading, rank.peak) == (2 * PARAMETERS + 3 * 2**30,) * 2
    (limit,) = [one for one in run_limits(planner) if one.what == "a rank's memory"]
    assert not limit.holds
    low = replace(planner.config.learner, zero_stage=2)
    assert planner.rank_with(low).loading == 0


def test_a_loop_has_no_passes_of_a_reference_that_another_stage_has(folder: Path) -> None:
    def of(stages: str) -> Planner:
        site = named_site("8xH100-80G", host_gib_per_gpu=128.0, shm_gib=1.0)
        given = [f"model.path={folder}", f"stages={stages}", "dpo.data=pairs.jsonl"]
        return Planner(*planned_config(EIGHT, given, site), site, Assumptions())

    alone, after = of("[init,rl]"), of("[init,dpo,rl]")
    learners = (alone.config.learner, replace(alone.config.learner, lora=LoraConfig(rank=8)))
    held = [[planner.rank_with(learner).reference for learner in learners] for planner in (alone, after)]
    assert held[0] == [0, 0]
    assert held[1][0] > 0  # a rank has room for it
    assert held[1][1] == 0  # adapters are compared with the model without them
    away = replace(alone.config.learner, zero_stage=3, offload="cpu")
    ranks = [planner.rank_with(away) for planner in (alone, after)]
    assert [rank.reference for rank in ranks] == [0, 0]  # it lies in main memory with the model
    assert ranks[1].offloaded - ranks[0].offloaded == 2 * alone.model.parameters // away.ranks
    assert after.fleet == alone.fleet


def test_hours_name_the_stages_that_they_are_not_of(folder: Path) -> None:
    site = named_site("8xH100-80G", host_gib_per_gpu=128.0, shm_gib=1.0)
    given = [f"model.path={folder}", "stages=[init,sft,rl,{rl: {name: rl_2, steps: 1000}},eval]"]
    found = make_plan(Planner(*planned_config(EIGHT, given, site), site, Assumptions()))
    assert found.left_out == ("sft", "rl_2", "eval-rl_2")
    assert found.time is not None
    assert (found.time.work.stage, found.time.work.steps) == ("rl", 300)
