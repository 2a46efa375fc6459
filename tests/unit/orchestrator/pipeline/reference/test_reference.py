"""The reference of settings: a line for each setting, a page for all, and an explanation with value and origin."""

from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from temper.envs.core.setting import free, immutable, scheduled
from temper.orchestrator.__main__ import main
from temper.orchestrator.pipeline.config import KINDS, load_config, save_config
from temper.orchestrator.pipeline.reference.pages import settings_page
from temper.orchestrator.pipeline.reference.resolved_file import ResolvedFile, explain, explain_setting, resolve
from temper.orchestrator.pipeline.reference.settings import Setting, all_settings, class_text, field_texts, settings_in

DEMO = Path("configs/demo.yaml")
PLAIN = [one for one in all_settings().values() if not one.is_section]
UNITS = {"s": "seconds", "gib": "GiB", "tokens": "tokens", "share": "share"}
"""The expected unit by the last word of a setting's name."""


@dataclass(frozen=True, kw_only=True)
class Inner:
    """What stands inside.

    More of it.
    """

    size: float = free(1.5, unit="share")
    """Share of a house,
    in two lines."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A base."""

    kept: int = scheduled(3, unit="tokens")
    """Tokens that are kept."""
    told_anew: int = scheduled(4)
    """What the base says."""


@dataclass(frozen=True, kw_only=True)
class Outer(Base):
    """The outside."""

    told_anew: int = scheduled(5)
    """What the outside says."""
    way: Literal["long", "short"] | None = immutable(None)
    """How."""
    inner: Inner = field(default_factory=lambda: Inner(size=2.5))
    perhaps: Inner | None = immutable(None)
    """One, or none."""
    each: dict[str, Inner] = field(default_factory=dict)
    """One for each name."""
    counts: dict[str, list[int]] = free({}, unit="tokens")
    """Counts in tokens."""


def facts(setting: Setting) -> tuple[Any, ...]:
    kind = None if setting.kind is None else setting.kind.value
    return setting.type, setting.default_text, setting.unit, kind, setting.meaning


def test_everything_that_is_told_of_a_setting_is_read_from_its_class() -> None:
    assert {one.key: facts(one) for one in settings_in(Outer)} == {
        "kept": ("int", "3", "tokens", "schedule", "Tokens that are kept."),
        "told_anew": ("int", "5", "", "schedule", "What the outside says."),
        "way": ("long, short or null", "null", "", "immutable", "How."),
        "inner": ("settings", "", "", None, "What stands inside."),
        "inner.size": ("float", "2.5", "share", "free", "Share of a house, in two lines."),
        "perhaps": ("settings or null", "null", "", "immutable", "One, or none."),
        "perhaps.size": ("float", "1.5", "share", "free", "Share of a house, in two lines."),
        "each": ("dict[str, settings]", "", "", None, "One for each name."),
        "each.*.size": ("float", "1.5", "share", "free", "Share of a house, in two lines."),
        "counts": ("dict[str, list[int]]", "{}", "tokens", "free", "Counts in tokens."),
    }


def test_a_class_that_no_source_declares_has_the_texts_of_those_it_inherits_from() -> None:
    made = make_dataclass("Made", [("more", int, free(1))], bases=(Base,), frozen=True, kw_only=True)
    assert field_texts(made) == {"kept": "Tokens that are kept.", "told_anew": "What the base says."}
    assert class_text(made) == ""


def test_every_setting_says_what_it_is_and_what_a_change_of_it_means() -> None:
    assert [one.key for one in all_settings().values() if not one.meaning.endswith(".")] == []
    assert {one.key: one.kind for one in PLAIN} == KINDS


def test_the_unit_of_a_setting_is_that_of_its_name() -> None:
    numbers = [one for one in PLAIN if "int" in one.type or "float" in one.type]
    named = {one.key: UNITS[word] for one in numbers if (word := one.name.rpartition("_")[2]) in UNITS}
    rates = {key: "MB/s" for key in named if key.endswith("megabytes_per_s")}
    assert {one.key: one.unit for one in numbers if one.key in named} == named | rates


def test_the_page_of_all_settings_is_as_the_classes_have_it() -> None:
    written = Path("docs/settings.md").read_text(encoding="utf-8")
    assert written == settings_page(), "run `make settings`, which writes docs/settings.md"


def told(key: str, file: ResolvedFile) -> dict[str, str]:
    """Return the explanation of a setting in a file, by the first word of each line."""
    said: dict[str, str] = {}
    for line in explain_setting(key, file)[1:]:
        name = line[2:12].strip() or list(said)[-1]
        said[name] = f"{said.get(name, '')} {line[12:]}".strip()
    return said


def test_a_setting_is_explained() -> None:
    lines = explain("rl.loss.error_guard", None, [])
    assert lines[:3] == ["rl.loss.error_guard", "  type      float", "  default   2.0"]
    assert lines[3].startswith("  meaning   ")
    assert lines[4].startswith("  change    immutable: ")


def test_the_value_of_a_setting_is_said_with_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "more.yaml"
    path.write_text(MORE, encoding="utf-8")
    over = tmp_path / "over.yaml"
    over.write_text("rl: {max_replaced_groups: 5, epochs: 2}\nrl-2: {group_size: 4}\n", encoding="utf-8")
    settings = ["rl.epochs=3", "rl={loss: {kl: k2}}", "envs.math.data=x.jsonl", "rl-2.max_lag=0"]
    overrides = ["profile=cpu", str(over), *settings]
    file = resolve(path, overrides)
    said = {key: told(key, file)["value"] for key in VALUES}
    assert said == {key: value.replace("FILE", str(path)).replace("OVER", str(over)) for key, value in VALUES.items()}
    assert told("learner.micro_batch_tokens", file)["value"].startswith("2048 (profile cpu (")
    assert told("envs.*.level", file)["value"].startswith("envs.math.level: 1 (default) envs.gsm8k.level:")


MORE = """
name: more
envs: {math: {share: 2}, gsm8k: {preset: gsm8k}}
stages: [init, rl, rl, {rl: {name: more, steps: 8}}]
rl: {steps: 44, shares: {math: 1.8}}
rollout: {limits: {total_tokens: 9999}, engine: {max_model_len: 512}}  # a run would refuse it
"""
VALUES = {
    "rl.steps": "44 (FILE)",
    "rl.max_replaced_groups": "5 (OVER)",
    "rl.epochs": "3 (the command line)",
    "rl-2.group_size": "4 (OVER)",
    "rl.loss.kl": "k2 (the command line)",
    "rl.loss.kl_in": "loss (default)",
    "distill.epochs": "1 (default)",
    "rl.shares.math": "1.8 (FILE)",
    "rl.shares.gsm8k": "none (rl.shares has no such entry)",
    "rl-2.steps": "44 (as rl.steps: FILE)",
    "rl-2.max_lag": "0 (the command line)",
    "more.steps": "8 (FILE, in its entry of `stages`)",
    "more.max_failures": "0.5 (as rl.max_failures: default)",
    "envs.math.share": "2.0 (FILE)",
    "envs.math.data.path": "x.jsonl (the command line)",
    "envs.math.eval_data.path": "none (envs.math.eval_data has no such entry)",
    "envs.gsm8k.data": "null (default)",
    "envs.gsm8k.kind": "math (the standard set gsm8k)",
    "rollout.limits.total_tokens": "9999 (FILE)",
}


def test_what_a_run_recorded_of_its_profile_is_told_as_such(tmp_path: Path) -> None:
    chosen = "resolved={profile: cpu, hardware: a few cores, settings: {learner.threads: 1}}"
    save_config(load_config(DEMO, [chosen]), tmp_path / "config.yaml")
    file = resolve(tmp_path, [])
    recorded = f"1 (profile cpu (a few cores), recorded in {tmp_path}/config.yaml)"
    assert told("learner.threads", file)["value"] == recorded


def test_where_the_model_would_have_to_be_downloaded_nothing_is_and_it_is_said() -> None:
    overrides = ["model.path=nobody/none-such"]
    file = resolve(DEMO, overrides)
    said = told("learner.ranks", file)
    assert said["value"] == "1 (default)"
    assert "hf download nobody/none-such" in said["note"]
    assert "note" not in told("rl.steps", file)


def test_a_section_lists_its_settings() -> None:
    lines = explain("rl.loss", None, [])
    within = [key for key in all_settings() if key.startswith("rl.loss.")]
    assert lines[lines.index("") + 1] == "  values by default:"
    assert [line.split()[0] for line in lines[lines.index("") + 2 :]] == within
    file = resolve(DEMO, ["profile=cpu", "stages=[init,rl,rl]", "rl-2.max_lag=0"])
    said = {line.split()[0]: line.split()[1] for line in explain_setting("rl-2", file) if line.startswith("  rl-2.")}
    of_env = [line.split(maxsplit=2) for line in explain_setting("envs.math", file)]
    assert ["envs.math.level", "1", "Difficulty of generated tasks, from 1."] in of_env
    assert (said["rl-2.max_lag"], said["rl-2.groups_per_step"], said["rl-2.epochs"]) == ("0", "20", "1")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("rl.los.error_gard", "rl.loss.error_guard"),
        ("lerning_rate", "rl.optim.learning_rate"),
        ("rl.steps.first", "rl.steps"),
        ("total_token", "rollout.limits.total_tokens"),
    ],
)
def test_a_key_that_there_is_not_gets_the_nearest_ones(key: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--explain", key]) == 2
    assert near in capsys.readouterr().err


def test_the_command_explains_with_settings_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["config", str(DEMO), "--explain", "rl.steps"], ["config", "--explain", "rl.steps", str(DEMO)]):
        assert main([*command, "rl.steps=7"]) == 0
        assert "7 (the command line)" in capsys.readouterr().out
