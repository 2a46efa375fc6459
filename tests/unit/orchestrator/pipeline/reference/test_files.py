"""Configuration files: the resolved configuration, the difference between two files, and the schema for editors."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from support.refusals import refuses

from temper.orchestrator.__main__ import main
from temper.orchestrator.config.schema import resolve_given
from temper.orchestrator.config.text import parse_yaml
from temper.orchestrator.pipeline.config import (
    SCHEMA,
    load_config,
    load_unresolved_config,
    read_run_settings,
    save_config,
)
from temper.orchestrator.pipeline.reference.pages import editor_schema
from temper.orchestrator.pipeline.reference.resolved_file import differences, resolve, resolved_yaml
from temper.orchestrator.pipeline.reference.settings import REQUIRED, all_settings

DEMO = Path("configs/demo.yaml")
CONFIGS = sorted(Path("configs").rglob("*.yaml"))


@cache
def validator() -> Draft7Validator:
    return Draft7Validator(json.loads(editor_schema()))


def refused(text: str) -> bool:
    return not validator().is_valid(parse_yaml(text))


def given_at(key: str, value: object) -> dict[str, Any]:
    given: Any = value
    for word in reversed(key.replace("*", "math").split(".")):
        given = {word: given}
    assert isinstance(given, dict)
    return given


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_schema_accepts_every_shipped_configuration(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [error.message for error in validator().iter_errors(parse_yaml(text))] == []


def test_what_a_run_writes_is_accepted_by_the_schema(tmp_path: Path) -> None:
    overrides = ["stages=[init,rl,{rl: {name: more, steps: 8, loss: {kl: k1}}},report]", "envs.math.data=rows.jsonl"]
    save_config(load_config(DEMO, overrides), tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert [error.message for error in validator().iter_errors(parse_yaml(text))] == []


def test_the_schema_knows_every_setting_with_its_default_and_no_misspelt_one() -> None:
    plain = [one for one in all_settings().values() if not one.is_section and one.default_text != REQUIRED]
    assert [one.key for one in plain if not validator().is_valid(given_at(one.key, one.default))] == []
    assert [one.key for one in plain if not validator().is_valid(given_at(one.key, "${oc.env:NAME}"))] == []
    assert [one.key for one in plain if validator().is_valid(given_at(f"{one.key}z", one.default))] == []


@pytest.mark.parametrize(
    "text",
    [
        "{rl: {steps: many}}",
        "{rl: {loss: {kl: k4}}}",
        "{learner: {zero_stage: 4}}",
        "{stages: [init, sleep]}",
        "{stages: [init, {rl: {stepz: 3}}]}",
        "{stages: [init, {rl: {}, sft: {}}]}",
        "{stages: [init, {init: {seed: 3}}]}",
        "{rl-2: {stepz: 3}}",
        "{rl: null}",
        "{rl: 3}",
        "{envs: [math]}",
        "{envs: {math: null}}",
        "{stages: init}",
        "{model: some/model}",
        "{envs: {math: {data: {paht: x}}}}",
    ],
)
def test_what_the_loader_refuses_is_refused_by_the_schema_too(text: str, tmp_path: Path) -> None:
    assert refused(text)
    given = parse_yaml(text)
    file = tmp_path / "wrong.yaml"
    file.write_text(json.dumps({"name": "x", "envs": {"math": {}}, **given}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"rl|learner|stages|envs|model"):
        load_config(file, [])


@pytest.mark.parametrize(
    "text",
    [
        "{learner: {lora: null}}",
        "{eval-rl: {tasks: 3}}",
        "{eval: {budgets: ['${oc.env:NAME}']}}",
        "{rl: {shares: {math: '${oc.env:NAME}'}}}",
        "{stages: ['${oc.env:NAME}']}",
    ],
)
def test_what_the_loader_accepts_is_accepted_by_the_schema(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "rl" if "stages" in text else "3")
    load_unresolved_config(DEMO, [f"{key}={json.dumps(value)}" for key, value in parse_yaml(text).items()])
    assert not refused(text)


def test_all_that_a_run_would_have_is_a_configuration_of_the_same_run(tmp_path: Path) -> None:
    file = tmp_path / "whole.yaml"
    shown = resolved_yaml(resolve(DEMO, ["rl.steps=7", "profile=cpu"]))
    file.write_text(shown, encoding="utf-8")
    assert differences(resolve(file, []), resolve(DEMO, ["rl.steps=7", "profile=cpu"])) == ["nothing differs"]
    assert {"steps: 7", "profile: cpu"} <= {line.strip() for line in shown.splitlines()}


def test_what_a_run_would_refuse_is_refused_when_all_of_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["config", str(DEMO), "--resolved", "profile=cpu", "rl.group_size=1"]
    assert main(command) == 2
    assert "rl.group_size=1 must be at least 2" in capsys.readouterr().err


def test_secrets_are_not_shown() -> None:
    shown = resolved_yaml(resolve(DEMO, ["profile=cpu", "tracking.uri=https://me:sesame@host/"]))
    assert "sesame" not in shown


def test_a_setting_may_refer_to_the_default_of_another() -> None:
    reference = "rl.steps=${rft.steps}"
    assert resolve(DEMO, [reference], settles=False).values["rl"]["steps"] == all_settings()["rft.steps"].default
    given = read_run_settings(DEMO, [reference])
    assert resolve_given(SCHEMA, given) == read_run_settings(DEMO, [f"rl.steps={all_settings()['rft.steps'].default}"])


PRIVATE = "https://me:sesame@host/rows.jsonl"


def test_values_of_an_entry_of_stages_are_shown_as_a_run_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without secrets, with variables, and with all settings of a section that is given by its path."""
    monkeypatch.setenv("MANY", "9")
    one = f"stages=[init,{{sft: {{name: own, data: '{PRIVATE}', steps: '${{oc.env:MANY}}'}}}}]"
    two = f"stages=[init,{{sft: {{name: own, data: {{path: '{PRIVATE}'}}, steps: 9}}}}]"
    found = resolve(DEMO, [one], settles=False)
    assert "sesame" not in json.dumps(found.values)
    assert (found.values["own"]["steps"], found.values["own"]["batch_size"]) == (9, 32)
    assert differences(found, resolve(DEMO, [two], settles=False)) == ["nothing differs"]
    with refuses("own.steps"):
        _ = resolve(DEMO, ["stages=[init,{sft: {name: own, steps: many}}]"], settles=False).values


def test_what_differs_is_told_with_what_it_means(tmp_path: Path) -> None:
    one = ["profile=cpu", "stages=[init,rl,rl]", "rl.loss.kl_coefficient=0.1"]
    two = ["profile=cpu", "stages=[init,rl,rl]", "rl.steps=9", "rl-2.max_lag=0", "envs.code.drop_overlap=exact"]
    lines = differences(resolve(DEMO, one), resolve(DEMO, [*two, "envs.again={kind: math}", "rl.shares.again=2"]))
    assert [line.split() for line in lines[1:-1]] == [
        ["envs.code.drop_overlap", "none", "exact", "immutable"],
        ["rl.steps", "44", "9", "schedule"],
        ["rl.loss.kl_coefficient", "0.1", "0.0", "immutable"],
        ["rl-2.max_lag", "1", "0", "schedule"],
        ["envs.again", "-", "there", "immutable"],
        ["rl.shares.again", "-", "2.0", "schedule"],
    ]
    assert lines[-1] == "another run: 3 of 6 are immutable"
    save_config(load_config(DEMO, ["rl.max_lag=0", "profile=cpu"]), tmp_path / "config.yaml")
    rows = [line.split() for line in differences(resolve(DEMO, ["profile=cpu"]), resolve(tmp_path, []))[1:-1]]
    assert ["rl.max_lag", "1", "0", "schedule"] in rows


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resolved"], "--resolved needs FILE"),
        (
            ["configs/demo.yaml", "--diff", "configs/demo.yaml", "configs/demo.yaml"],
            "configs/demo.yaml",
        ),
        (["--diff", "configs/demo.yaml", "configs/demo.yaml", "rl.steps=3"], "rl.steps=3"),
        (["--explain", "rl.steps", "rl.steps=3"], "rl.steps=3 without FILE"),
        (["configs/demo.yaml", "--schema"], "configs/demo.yaml"),
        (["--diff", "configs/demo.yaml", "configs/none.yaml"], "no configuration file configs/none.yaml"),
    ],
)
def test_what_the_command_lacks_is_said(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *arguments]) == 2
    assert words in capsys.readouterr().err
