"""Instances of stages: names, their own settings, and the remaining stages after an edit of the list."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from temper.orchestrator.pipeline.config import Config, flat_config, load_config, save_config
from temper.orchestrator.pipeline.plan import instances, plan, single
from temper.orchestrator.run.folder import RunState
from temper.orchestrator.stages.registry import all_stages

DEMO = Path("configs/demo.yaml")
TWICE = "stages=[init,sft,rl,eval,{rl: {name: rl_tools, shares: {tool_use: 1}, steps: 100}},rl,eval,eval]"
EVERY = 5
"""Default number of steps of each training stage."""


def names(stages: list[Any]) -> list[str]:
    return [stage.name for stage in instances(stages)]


def reached(*done: str, begun: dict[str, str] | None = None) -> RunState:
    """Return the state of a run that finished these instances. Each began with the model of its predecessor."""
    state, models = RunState(), {"init": "init", "sft": "sft", "rl": "rl"}
    for name in done:
        stage = next(known for known in ("rft", "sft", "rl", "dpo", "eval", "init", "report") if name.startswith(known))
        trains = stage not in ("init", "eval", "report")
        state = replace(
            state,
            done=state.done | {name: EVERY if trains else 0},
            stages=state.stages | {name: stage},
            began=state.began | ({name: str(state.model)} if trains else {}),
            model=models.get(name, name) if stage not in ("eval", "report") else state.model,
            label=name if stage not in ("eval", "report") else state.label,
        )
    return replace(state, began=state.began | (begun or {}))


def ahead(stages: list[Any], state: RunState, **steps: int) -> list[str]:
    listed = instances(stages)
    wanted = {stage.name: steps.get(stage.name, EVERY) for stage in listed if stage.stage.trains}
    return [stage.name for stage in plan(listed, state, steps=wanted).ahead]


def commanded(stage: str, stages: list[Any], state: RunState, **steps: int) -> tuple[list[str], list[str]]:
    listed = instances(stages)
    wanted = {one.name: steps.get(one.name, EVERY) for one in listed if one.stage.trains}
    found = single(all_stages()[stage], listed, state, steps=wanted)
    return [one.name for one in found.ahead], found.notes


def test_instances_have_names_of_their_own_or_of_their_stage_with_a_number() -> None:
    assert names(["init", "eval", "rl", "eval", "eval", {"rl": {"name": "rl_tools"}}, "rl", "eval", "report", "report"]) == [
        "init", "eval-init", "rl", "eval-rl", "eval-rl-2", "rl_tools", "rl-2", "eval-rl-2-2", "report", "report-2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (["sleep"], "stages: 'sleep'"),
        ([{"rl": {}, "sft": {}}], "rl"),
        ([{"rl": {"name": "../x"}}], r"\.\./x"),
        ([{"rl": {"name": "a"}}, {"sft": {"name": "a"}}], "'a'"),
        (["init", "sft", "init"], "3 .*'init'"),
        ([{"init": {"name": "again"}}], "1 .*init"),
        ([{"rl": {"name": "sft"}}], "rl .* sft"),
    ],
)
def test_an_entry_that_is_no_stage_is_refused(stages: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        instances(stages)


def test_an_instance_has_the_settings_of_its_stage_and_over_them_its_own_also_from_the_command_line(
    tmp_path: Path,
) -> None:
    given = [
        TWICE,
        "rl.shares={code: 1.7}",
        "rl.optim.learning_rate=1.5e-4",
        "eval.tasks=64",
        "rl.steps=9",
        "rl_tools.optim.learning_rate=1e-6",
        "rl-2.steps=7",
        "eval-rl-2.tasks=3",
    ]
    config = load_config(DEMO, given)
    by_name = {stage.name: config.settings(stage) for stage in config.instances}
    assert {name: by_name[name].steps for name in ("rl", "rl_tools", "rl-2")} == {"rl": 9, "rl_tools": 100, "rl-2": 7}
    assert by_name["rl_tools"].shares == {"code": 1.7, "tool_use": 1}
    assert (by_name["rl_tools"].optim.learning_rate, by_name["rl-2"].optim.learning_rate) == (1e-6, 1.5e-4)
    assert (by_name["eval-rl-2"].tasks, by_name["eval-rl"].tasks) == (3, 64)
    assert flat_config(config)["rl_tools.steps"] == "100"
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml", []) == config


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl_tools.stepz=1", "rl_tools.stepz.*rl_tools.steps"),
        ("rl_tools.steps=0", "rl_tools: rl.steps=0"),
        ("rl_tools.shares.maths=1", "rl_tools.shares.maths"),
        ("stages=[init,{rl: {name: envs}}]", "stages: 'envs'"),
        ("stages=[init,{dpo: {name: metrics}}]", "stages: 'metrics'"),
        ("stages=[{report: {steps: 3}}]", "report"),
    ],
)
def test_a_mistake_in_the_settings_of_an_instance_is_named(override: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_config(DEMO, [TWICE, override])


def test_what_is_done_is_skipped_wherever_it_stands_now() -> None:
    both = ["init", "eval", "sft", "eval", "rl", "eval", "report"]
    assert ahead(both, reached()) == ["init", "eval-init", "sft", "eval-sft", "rl", "eval-rl", "report"]
    assert ahead(both, reached("init", "eval-init", "sft")) == ["eval-sft", "rl", "eval-rl", "report"]
    assert ahead(["init", "rl"], reached("init", "sft")) == ["rl"]  # from sft's model; a note names it
    assert ahead(["init", "sft", "rl"], reached("init", "eval-init", "sft")) == ["rl"]
    assert ahead(["init", "eval"], reached("init", "eval-init", "sft")) == ["eval-sft"]  # the newest model and its name


def test_a_stage_that_stands_twice_runs_twice() -> None:
    assert ahead(["init", "sft", "rl", "sft"], reached("init", "sft", "rl")) == ["sft-2"]
    assert ahead(["init", "sft", "dpo", "sft"], reached("init")) == ["sft", "dpo", "sft-2"]


def test_a_report_is_written_again_after_what_was_added() -> None:
    assert ahead(["init", "sft", "dpo", "report"], reached("init", "sft", "report")) == ["dpo", "report"]
    assert ahead(["init", "sft", "report"], reached("init", "sft", "report")) == []


@pytest.mark.parametrize(
    ("stages", "state", "said"),
    [
        (["init", "dpo", "sft"], reached("init", "sft"), "dpo .* sft"),
        (["init", "eval", "sft"], reached("init", "sft"), "eval-init .* sft"),
        (["init", "rl", "sft"], reached("init", "sft", "rl"), "init, sft, rl"),
        (
            ["init", "sft", "dpo", "rl"],
            reached("init", "sft", begun={"rl": "sft"}),
            "rl .* dpo",
        ),
        (["init", "sft", "dpo", "rl"], reached("init", "sft", "dpo", begun={"rl": "sft"}), "rl .* sft"),
        (["init", {"dpo": {"name": "sft-2"}}], reached("init", "sft", "sft-2"), "sft-2 .* sft .* dpo"),
    ],
)
def test_what_can_not_be_continued_is_refused_with_the_reason(stages: list[Any], state: RunState, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ahead(stages, state)


def test_evaluations_of_a_model_that_the_list_does_not_name_have_names_of_their_own() -> None:
    stages = ["init", "rl", "eval", "eval"]
    state = replace(reached("init", "rl", "eval-rl", "dpo"), model="dpo", label="dpo")
    assert ahead(stages, state) == ["eval-dpo", "eval-dpo-2"]
    once = replace(state, done=state.done | {"eval-dpo": 0}, stages=state.stages | {"eval-dpo": "eval"})
    assert ahead(stages, once) == ["eval-dpo-2"]
    assert ahead([*stages[:3], {"eval": {"name": "eval-dpo"}}], state) == ["eval-dpo-2", "eval-dpo"]


def test_the_last_trained_stage_goes_on_where_more_steps_are_asked_for_and_what_followed_is_done_again() -> None:
    stages = ["init", "eval", "sft", "eval", "report"]
    whole = reached("init", "eval-init", "sft", "eval-sft", "report")
    assert ahead(stages, whole, sft=EVERY + 1) == ["sft", "eval-sft", "report"]
    with pytest.raises(ValueError, match="- sft"):
        ahead(["init", "sft", "rl"], reached("init", "sft", "rl"), sft=EVERY + 1)


def test_the_command_of_one_stage_never_takes_a_finished_run_back() -> None:
    stages = ["init", "sft", "rl"]
    whole = reached("init", "sft", "rl")
    assert commanded("rl", stages, reached("init", "sft")) == (["rl"], [])
    nothing, (said,) = commanded("sft", stages, whole)
    assert nothing == []
    assert "sft.steps" in said
    assert commanded("init", stages, whole)[0] == []
    assert commanded("rl", stages, whole, rl=EVERY + 1) == (["rl"], [])
    with pytest.raises(ValueError, match="- sft"):
        commanded("sft", stages, whole, sft=EVERY + 1)
    assert commanded("sft", [*stages, "sft"], whole) == (["sft-2"], [])
    assert commanded("eval", stages, whole) == (["eval-rl"], [])
    assert commanded("report", stages, whole) == (["report"], [])


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp/x", "a\\b", " "])
def test_a_name_can_not_leave_the_folder_of_runs(name: str) -> None:
    with pytest.raises(ValueError, match="^name="):
        Config(name=name, envs=load_config(DEMO, []).envs)
