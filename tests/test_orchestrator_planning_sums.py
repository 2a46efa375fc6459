"""The sums of a plan by hand: which side limits a step, what ZeRO sends, and which stages are in hours and price."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from public_models import NANO_9B

from learner.config import LoraConfig
from orchestrator.planning.answer import answer_plan
from orchestrator.planning.assumptions import Assumptions
from orchestrator.planning.cards import named_site
from orchestrator.planning.page import page
from orchestrator.planning.plan import make_plan, planned_config
from orchestrator.planning.planner import Planner
from orchestrator.planning.seconds.rates import Rates, Slowdown, learning, pushing
from orchestrator.planning.seconds.step_time import StepTime, step_time
from orchestrator.planning.seconds.work import Work

EIGHT = Path("configs/recipes/eight_gpus.yaml")
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
RATES = Rates(
    sampled_per_s=100.0,
    token_s=0.01,
    trained_per_s=200.0,
    updates_s=1.0,
    publish_s=0.5,
    load_s=0.25,
    source="test",
    batch_s=4.0,
)
"""800 tokens are sampled in 8 s and learnt in 5 s: with 4 s for batches and 0.5 s to publish the learner takes 9.5 s."""


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


def parts(time: StepTime) -> tuple[float, ...]:
    return time.generate_s, time.load_s, time.batch_s, time.learn_s, time.publish_s


def test_a_learner_whose_batches_take_longest_limits_the_step_and_its_parts_say_so(planner: Planner) -> None:
    time = step_time(RATES, WORK, engines=1)
    assert parts(time) == (8.0, 0.25, 4.0, 5.0, 0.5)
    assert (time.step_s, time.limited_by) == (9.5, "learning")
    (line,) = [said for said in page(make_plan(planner, rates=replace(RATES, token_s=1e-5))) if " | learn " in said]
    assert "| batches 4.00 s | learn" in line
    quick = step_time(replace(RATES, batch_s=1.0), WORK, engines=1)
    assert (quick.step_s, quick.limited_by) == (8.25, "generating")


def test_both_sides_slowed_down_are_compared_as_they_made_the_step() -> None:
    time = step_time(replace(RATES, slowdown=Slowdown(engines=1.0, learner=2.0)), WORK, engines=1)
    assert (time.step_s, time.limited_by) == (9.5 + 8.25 / 2, "learning")
    assert time.batch_s + time.learn_s + time.publish_s == pytest.approx(time.step_s)
    turns = step_time(RATES, replace(WORK, lag=0.0), engines=1)
    assert turns.step_s == sum(parts(turns)) == 17.75


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
    assert pushing(fleet, slow)[1] == pytest.approx(10 * pushing(fleet, usual)[1])


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
    assert after.fleet == alone.fleet


def test_hours_and_price_are_labelled_with_their_stage_and_name_those_they_are_not_of(folder: Path) -> None:
    given = [f"model.path={folder}", "stages=[init,sft,rl,{rl: {name: rl_2, steps: 1000}},eval]"]

    def planned(as_json: bool) -> str:
        return answer_plan(
            EIGHT, given, gpus="8xH100-80G", assumptions=Assumptions(), price=2.0, probe=False, as_json=as_json
        )[0]

    said = planned(as_json=False)
    assert "all steps       300 steps of rl, " in said
    assert "not in seconds, hours, price and deadlines: sft, rl_2, eval-rl_2" in said
    found = json.loads(planned(as_json=True))
    assert found["left_out"] == ["sft", "rl_2", "eval-rl_2"]
    assert (found["time"]["work"]["stage"], found["time"]["work"]["steps"]) == ("rl", 300)
