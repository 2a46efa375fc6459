"""Texts as YAML, variables and folder names read them, and texts that a run refuses."""

from pathlib import Path

import pytest

from temper.envs.core.bounds import SettingError
from temper.orchestrator.config.text import read_text, read_value, yaml_text
from temper.orchestrator.pipeline.config import Config, flat_config, load_config, save_config

START = "name: t\nstages: [init, sft, report]\nsft: {data: rows.jsonl}\n"


def loaded(folder: Path, text: str, *overrides: str) -> Config:
    (folder / "c.yaml").write_text(text, encoding="utf-8")
    return load_config(folder / "c.yaml", list(overrides))


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("seed: 2\nseed: 3\n", 5),
        ("---\nrl: {steps: 2}\n", 4),
        ("rl:\n\tsteps: 2\n", 5),
        ("seed: 010\n", 4),
        ("rl: {steps: 1:30}\n", 4),
        ("rl:\n  optim: {eps: 1:30.5}\n", 5),
    ],
)
def test_yaml_that_means_something_else_is_refused_with_its_line(more: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"(?s)c\.yaml.*line {line}\b"):
        loaded(tmp_path, START + more)


@pytest.mark.parametrize("text", ["5\n", "on\n", f"name: t\nrl: {'{loss: ' * 300}{'}' * 300}\n"])
def test_a_file_that_no_configuration_can_be_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"c\.yaml"):
        loaded(tmp_path, text)


@pytest.mark.parametrize("text", ["name: [x\n", "5\n"])
def test_a_damaged_file_of_a_run_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml"):
        read_value(tmp_path / "config.yaml", "name")


def test_an_override_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name="):
        loaded(tmp_path, START, "name=\udcff")


@pytest.mark.parametrize("override", ["seed=010", "name=12:30", "rl={steps: 010}"])
def test_a_number_of_another_base_is_refused_on_the_command_line(override: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=override):
        loaded(tmp_path, START, override)


@pytest.mark.parametrize("rate", ["1e-3", "1E-3", "1.e-3", "0.001", "'1e-3'", "1_0e-4"])
def test_a_rate_is_the_number_as_written(rate: str, tmp_path: Path) -> None:
    assert (
        loaded(tmp_path, f"{START}rl: {{optim: {{learning_rate: {rate}}}}}\n").sections["rl"].optim.learning_rate
        == 1e-3
    )


@pytest.mark.parametrize("name", ["010", "08", "12:30", "1e5", "1.10", "no", "null", "2026-01-31"])
def test_a_quoted_name_is_kept_and_saved(name: str, tmp_path: Path) -> None:
    config = loaded(tmp_path, START, f"name='{name}'")
    assert config.name == name
    (tmp_path / "saved.yaml").write_text(yaml_text({"name": name}))
    assert read_text(tmp_path / "saved.yaml", []) == {"name": name}


@pytest.mark.parametrize("text", ["Use ${NAME}", "${oc.env:HOME}", r"a\${b}", "${"])
def test_a_text_that_looks_like_a_reference_is_saved_as_it_is(text: str, tmp_path: Path) -> None:
    """A backslash keeps it from being resolved."""
    escaped = text.replace("\\", "\\\\").replace("${", r"\${")
    config = loaded(tmp_path, f"{START}envs: {{math: {{options: {{system: '{escaped}'}}}}}}\n")
    save_config(config, tmp_path / "saved.yaml")
    for one in (config, load_config(tmp_path / "saved.yaml", [])):
        assert one.envs["math"].options == {"system": text}
    assert flat_config(config)["envs.math.options.system"] == text


@pytest.mark.parametrize("override", ["name=1e5", "name=1.10", "model={path: m, revision: 1234567e10}"])
def test_a_text_that_yaml_reads_as_a_number_is_refused(override: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        loaded(tmp_path, START, override)
    assert caught.value.key in ("name", "model.revision")


@pytest.mark.parametrize("name", ["x" * 256, "\u00e4" * 128, "a\x07b", "a\x7f", "", "..", "a/b", "$USER", " a"])
def test_a_name_that_no_folder_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^name="):
        loaded(tmp_path, START, f"name={name!r}" if name.isprintable() else f'name="{name!r}"'.replace("'", ""))
    assert loaded(tmp_path, START, f"name={'x' * 255}").name == "x" * 255


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("sft.data=${DATA_DIR}/x.jsonl", "sft.data.path"),
        ("sft.data=${oc.env:DATA_DIR}/x.jsonl", "sft.data.path"),
        ("sft.data=$DATA_DIR/x.jsonl", "sft.data.path"),
        ("envs.math.eval_data=$DATA_DIR/x.jsonl", "envs.math.eval_data.path"),
        ("model.path=$DATA_DIR/m", "model.path"),
        ("runs_dir=$DATA_DIR", "runs_dir"),
    ],
)
def test_a_variable_leads_to_the_form_that_reads_it(
    override: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATA_DIR", raising=False)
    with pytest.raises(SettingError) as caught:
        loaded(tmp_path, START, override)
    assert caught.value.key == key
    assert "${oc.env:DATA_DIR" in caught.value.remedy


def test_a_file_may_have_a_dollar_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("$rows.jsonl").touch()
    assert loaded(tmp_path, START, "sft.data=$rows.jsonl").sections["sft"].data.path == "$rows.jsonl"


def test_a_home_that_only_a_shell_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        loaded(tmp_path, START, "runs_dir=~/runs")
    assert caught.value.key == "runs_dir"
