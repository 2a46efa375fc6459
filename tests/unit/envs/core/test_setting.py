"""Kinds of settings: the changes that a resumed run accepts."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.run_folders import with_checkpoint
from support.tiny_shop import write_shop

from temper.envs.config import EnvConfig
from temper.envs.core.bounds import SettingError
from temper.envs.core.setting import Kind, free, immutable, kind_of, kinds, scheduled
from temper.learner.training_state import STATE_FOLDER, CheckpointFacts
from temper.orchestrator.pipeline.config import KINDS, Config, flat_config, load_config
from temper.orchestrator.pipeline.continuation import check_continuation, valid_progress
from temper.orchestrator.pipeline.data_files import content
from temper.orchestrator.run.checkpoint import begin, commit
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsRow, read_metrics

DEMO = Path("configs/demo.yaml")


@dataclass(frozen=True, kw_only=True)
class Inner:
    steps: int = scheduled(3)
    shares: dict[str, float] = scheduled({})
    seed: int = immutable(1)


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    parts: dict[str, Inner] = field(default_factory=dict)
    whole: Inner = immutable(Inner())
    timeout_s: float = free(1.0)


def test_kinds_are_found_in_nested_settings_and_dicts() -> None:
    known = kinds(Outer)
    assert known == {
        "inner.steps": Kind.SCHEDULE,
        "inner.shares": Kind.SCHEDULE,
        "inner.seed": Kind.IMMUTABLE,
        "parts.*.steps": Kind.SCHEDULE,
        "parts.*.shares": Kind.SCHEDULE,
        "parts.*.seed": Kind.IMMUTABLE,
        "whole.steps": Kind.IMMUTABLE,
        "whole.shares": Kind.IMMUTABLE,
        "whole.seed": Kind.IMMUTABLE,
        "timeout_s": Kind.FREE,
    }
    assert kind_of(known, "inner.shares.math") is Kind.SCHEDULE
    assert kind_of(known, "parts.math.seed") is Kind.IMMUTABLE
    assert kind_of(known, "parts.math.shares.code") is Kind.SCHEDULE
    assert kind_of(known, "unheard.of") is Kind.IMMUTABLE


def test_a_list_or_dict_that_is_a_default_is_not_shared() -> None:
    Inner().shares["math"] = 1.0
    assert Inner().shares == {}


def test_a_setting_without_a_kind_is_refused_by_its_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Forgotten:
        steps: int = 3

    with pytest.raises(ValueError, match=r"steps .*immutable\(3\)"):
        kinds(Forgotten)


def test_every_setting_of_a_run_declares_its_kind() -> None:
    flat = flat_config(load_config(DEMO, []))
    assert {kind_of(KINDS, key) for key in flat} == set(Kind)
    for key, kind in {
        "seed": Kind.IMMUTABLE,
        "model.fresh.hidden_size": Kind.IMMUTABLE,
        "envs.math.data": Kind.IMMUTABLE,
        "rl.loss.surrogate": Kind.IMMUTABLE,
        "rl.optim.learning_rate": Kind.SCHEDULE,
        "rl.steps": Kind.SCHEDULE,
        "envs.math.share": Kind.SCHEDULE,
        "rl.timeout_s": Kind.FREE,
        "rl.checkpoint_every": Kind.FREE,
        "rl.max_failures": Kind.FREE,
        "rollout.limits.timeout_s": Kind.FREE,
        "rollout.engine.memory_gib": Kind.FREE,
        "learner.threads": Kind.FREE,
        "tracking.uri": Kind.FREE,
    }.items():
        assert kind_of(KINDS, key) is kind, key


def test_a_resumed_run_takes_free_changes_but_no_others(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "demo")
    folder.open()
    check_continuation(load_config(DEMO, []), folder)
    with_checkpoint(folder, "rl")
    raised = ["rl.timeout_s=900", "rollout.engine.memory_gib=2", "rl.checkpoint_every=5", "rl.optim.learning_rate=1e-5"]
    check_continuation(load_config(DEMO, raised), folder)
    with pytest.raises(ValueError, match=r"rl.loss.advantage: rloo -> grpo"):
        check_continuation(load_config(DEMO, ["rl.loss.advantage=grpo"]), folder)
    folder.close()


def events(folder: RunDir) -> list[MetricsRow]:
    return [row for row in read_metrics(folder.metrics) if row.event is not None]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunDir]:
    """Return a run's folder whose lock is held."""
    folder = RunDir(tmp_path / "demo")
    folder.open()
    yield folder
    folder.close()


def test_a_change_of_schedule_is_recorded_once(folder: RunDir) -> None:
    check_continuation(load_config(DEMO, ["rl.optim.learning_rate=1e-4"]), folder)
    with_checkpoint(folder, "rl", 25)
    changed = load_config(DEMO, ["rl.optim.learning_rate=1e-5", "envs.math.share=2", "rl.timeout_s=900"])
    for _ in range(2):
        check_continuation(changed, folder)
    (row,) = events(folder)
    assert (row.stage, row.step) == ("rl", 25)
    what = {"envs.math.share": ["1.0", "2.0"], "rl.optim.learning_rate": ["0.0001", "1e-05"]}
    assert row.event == {"kind": "changed", "what": what}


def write_whole_checkpoint(folder: RunDir, name: str, step: int, *, updates: int) -> Path:
    directory = begin(folder.checkpoints(name), step, needed_bytes=0)
    (directory / STATE_FOLDER).mkdir()
    CheckpointFacts(steps=updates, bf16=False, start="../init").write(directory)
    return commit(directory)


def test_a_longer_run_names_its_learning_rates(folder: RunDir) -> None:
    given = ["sft.steps=8", "sft.optim.schedule=linear", "sft.optim.warmup_steps=0", "sft.optim.final_fraction=0"]
    check_continuation(load_config(DEMO, [*given, "sft.optim.learning_rate=0.008"]), folder)
    with_checkpoint(folder, "sft", 1)
    for step in (6, 8):
        write_whole_checkpoint(folder, "sft", step, updates=step)
    damaged = folder.checkpoints("sft") / "000008" / STATE_FOLDER / "facts.json"
    damaged.write_text("{}")
    notes = check_continuation(load_config(DEMO, [*given, "sft.optim.learning_rate=0.008", "sft.steps=16"]), folder)
    (row,) = events(folder)
    assert row.event is not None
    assert (row.stage, row.step, row.event["what"]["sft.steps"]) == ("sft", 6, ["8", "16"])
    assert row.event["what"]["learning rate"] == ["0.003 at step 6", "0.005 at step 7"]
    assert len(notes) == 1
    assert "rises" in notes[0]


def test_a_change_that_keeps_the_rate_has_no_note_on_it(folder: RunDir) -> None:
    check_continuation(load_config(DEMO, ["rl.optim.schedule=constant"]), folder)
    with_checkpoint(folder, "rl", 1)
    write_whole_checkpoint(folder, "rl", 30, updates=30)
    assert check_continuation(load_config(DEMO, ["rl.optim.schedule=constant", "rl.steps=90"]), folder) == []
    (row,) = events(folder)
    assert row.event == {"kind": "changed", "what": {"rl.steps": ["44", "90"]}}


def test_a_setting_that_an_older_version_lacks_is_no_change(folder: RunDir) -> None:
    check_continuation(load_config(DEMO, []), folder)
    with_checkpoint(folder, "rl", 1)
    state = folder.state()
    lacked = ("rl.loss.nested_weights", "learner.bf16", "envs.math.preset", "seed")
    assert set(lacked) <= set(state.fingerprint)
    older = {key: value for key, value in state.fingerprint.items() if key not in lacked}
    folder.store(replace(state, fingerprint=older))
    assert check_continuation(load_config(DEMO, []), folder) == []
    assert events(folder) == []
    folder.store(replace(state, fingerprint=older))
    with pytest.raises(ValueError, match=r"rl.loss.nested_weights"):
        check_continuation(
            load_config(DEMO, ["rl.loss.nested_weights=[1,2]", "rl.thinking.nested_budgets=[8]"]), folder
        )


def test_an_untrained_run_may_change_anything(folder: RunDir) -> None:
    check_continuation(load_config(DEMO, []), folder)
    folder.store(replace(folder.state(), done={"init": 0}, model="checkpoints/init/000000", label="init"))
    check_continuation(load_config(DEMO, ["sft.steps=9"]), folder)
    assert folder.state().done == {"init": 0}
    check_continuation(load_config(DEMO, ["seed=2", "model.fresh.hidden_size=64"]), folder)
    assert (folder.state().done, folder.state().model) == ({}, None)
    assert events(folder) == []


def test_the_settings_of_a_stage_that_has_not_begun_may_change(folder: RunDir) -> None:
    check_continuation(load_config(DEMO, []), folder)
    with_checkpoint(folder, "sft")
    more = "stages=[init,sft,rl,{rl: {name: rl_tools, loss: {advantage: grpo}}}]"
    check_continuation(load_config(DEMO, ["rl.loss.advantage=dr_grpo", more]), folder)
    (row,) = events(folder)
    assert row.event is not None
    assert set(row.event["what"]) == {"stages", "rl.loss.advantage"}
    with_checkpoint(folder, "rl_tools")
    with pytest.raises(ValueError, match=r"rl_tools.loss.advantage: grpo -> rloo"):
        check_continuation(load_config(DEMO, [more, "rl_tools.loss.advantage=rloo"]), folder)
    with pytest.raises(ValueError, match=r"sft.batch_size: 32 -> 16"):
        check_continuation(load_config(DEMO, [more, "sft.batch_size=16"]), folder)


def test_changed_stage_settings_keep_earlier_progress(folder: RunDir) -> None:
    named = "stages=[init,eval,sft,{rl: {name: rl_tools, steps: 5}}]"
    check_continuation(load_config(DEMO, [named]), folder)
    folder.store(replace(folder.state(), done={"init": 0, "eval-init": 0}, model="gone", label="init"))
    (folder.evals / "init.json").write_text("{}")
    for given in (["sft.batch_size=16"], ["stages=[init,eval,sft,{rl: {name: rl_more, steps: 5}}]"]):
        config = load_config(DEMO, given)
        assert valid_progress(config, folder) == folder.state()
        check_continuation(config, folder)
        assert set(folder.state().done) == {"init", "eval-init"}
        assert list(folder.evals.glob("*.json"))
    other = load_config(DEMO, ["seed=2"])
    assert valid_progress(other, folder).model is None
    assert folder.state().model == "gone"  # nothing is written yet
    check_continuation(other, folder)
    assert not list(folder.evals.rglob("*.json"))


def test_a_stage_that_has_not_begun_may_leave_the_list(folder: RunDir) -> None:
    check_continuation(load_config(DEMO, ["stages=[init,sft,rl,{rl: {name: rl_tools, steps: 5}}]"]), folder)
    with_checkpoint(folder, "sft")
    check_continuation(load_config(DEMO, ["stages=[init,sft,rl]"]), folder)
    (row,) = events(folder)
    assert row.event_text == {"stages": "init, sft, rl, rl_tools -> init, sft, rl"}


@pytest.mark.parametrize("override", ["dpo.tasks=8", "dpo.shares.math=3", "envs.math.share=2"])
def test_changed_settings_sample_answers_anew(folder: RunDir, override: str) -> None:
    given = ["stages=[init,sft,dpo]"]
    check_continuation(load_config(DEMO, given), folder)
    with_checkpoint(folder, "sft", done=True)
    state = folder.state()
    folder.store(replace(state, began=state.began | {"dpo": str(state.model)}, stages=state.stages | {"dpo": "dpo"}))
    folder.answers_file("dpo").write_text("{}\n")
    check_continuation(load_config(DEMO, [*given, "dpo.steps=7", "dpo.beta=0.2"]), folder)
    assert folder.answers_file("dpo").exists()
    check_continuation(load_config(DEMO, [*given, override]), folder)
    assert not folder.answers_file("dpo").exists()


@pytest.mark.parametrize("rules", ["", "Mind the holes in the ice. " * 20])
def test_an_option_that_is_a_text_names_no_file(rules: str) -> None:
    options = f"envs.gym={{share: 0.0, options: {{id: FrozenLake-v1, rules: '{rules}'}}}}"
    assert content(load_config(DEMO, [options])) == {}


def test_an_option_for_a_folder_covers_only_the_needed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop").mkdir()
    shop = write_shop(tmp_path / "shop")
    config = load_config(DEMO, [f"envs.retail={{share: 0.0, options: {{database: {shop}}}}}"])
    first = content(config)
    assert set(first) == {"envs.retail.options.database"}
    (shop / "log.txt").write_text("played")
    assert content(config) == first
    (shop / "policy.md").write_text("Be firm.")
    assert content(config) != first
    monkeypatch.chdir(tmp_path)
    for folder in ("videos", "FrozenLake-v1"):
        (tmp_path / folder).mkdir()
    (tmp_path / "rules.txt").write_text("Mind the holes.")
    game = {"id": "FrozenLake-v1", "kwargs": {}, "rules": "videos"}
    assert content(Config(name="x", envs={"gym": EnvConfig(options=game)})) == {}
    named = content(Config(name="x", envs={"gym": EnvConfig(options=game | {"rules": "rules.txt"})}))
    assert set(named) == {"envs.gym.options.rules"}


def test_changed_data_is_noticed_and_moved_data_is_not(folder: RunDir, tmp_path: Path) -> None:
    rows = "".join(f'{{"question": "1+{n}?", "answer": "#### {n + 1}"}}\n' for n in range(40))
    data = tmp_path / "data.jsonl"
    data.write_text(rows)
    given = [f"envs.math.data={data}", f"sft.data={data}"]
    check_continuation(load_config(DEMO, given), folder)
    with_checkpoint(folder, "sft", done=True)
    data.rename(tmp_path / "moved.jsonl")
    moved = [f"envs.math.data={tmp_path}/moved.jsonl", f"sft.data={data}"]
    check_continuation(load_config(DEMO, moved), folder)  # sft is done and needs its file no more
    (tmp_path / "data.jsonl").write_text(rows)
    check_continuation(load_config(DEMO, moved), folder)  # and it is known when it is back
    (tmp_path / "moved.jsonl").unlink()
    check_continuation(load_config(DEMO, moved), folder, reads=False)  # a report needs no data
    (tmp_path / "moved.jsonl").write_text(rows + rows)
    with pytest.raises(ValueError, match=r"envs.math.data.path: \d+ bytes, SHA-256 .* -> \d+ bytes"):
        check_continuation(load_config(DEMO, moved), folder)


def test_the_first_model_may_be_gone_but_not_change(folder: RunDir, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    check_continuation(load_config(DEMO, [f"model.path={model}"]), folder)
    with_checkpoint(folder, "sft")
    (model / "config.json").unlink()
    model.rmdir()
    before = folder.config.read_text()
    for reads in (True, False):
        check_continuation(load_config(DEMO, [f"model.path={model}"]), folder, reads=reads)
        with pytest.raises(ValueError, match=r"model.path: \d+ bytes, SHA-256 .* -> no such file"):
            check_continuation(load_config(DEMO, [f"model.path={tmp_path}/modle"]), folder, reads=reads)
    assert folder.config.read_text() == before


def test_a_model_is_known_by_its_configuration_and_sizes(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"1234")
    config = load_config(DEMO, [f"model.path={model}"])
    first = content(config)["model.path"]
    (model / "model.safetensors").write_bytes(b"12345")
    second = content(config)["model.path"]
    (model / "config.json").write_text('{"n": 1}')
    assert len({first, second, content(config)["model.path"]}) == 3


@pytest.mark.parametrize("setting", ["classifier", "model"])
def test_the_model_of_a_judge_may_move_but_not_get_other_weights(setting: str, folder: RunDir, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"id2label": {"0": "good"}}')
    (model / "chat_template.jinja").write_text("{{ messages }}")
    (model / "model.safetensors").write_bytes(b"1234")
    judge = f"envs.math.judge={{{{{setting}: {{}}}}}}"
    check_continuation(load_config(DEMO, [judge.format(model)]), folder)
    with_checkpoint(folder, "rl")
    moved = model.rename(tmp_path / "moved")
    check_continuation(load_config(DEMO, [judge.format(moved)]), folder)
    (moved / "model.safetensors").write_bytes(b"4321")
    with pytest.raises(ValueError, match=rf"envs.math.judge.{setting}: .*SHA-256"):
        check_continuation(load_config(DEMO, [judge.format(moved)]), folder)


def test_a_small_number_is_shown_as_people_write_it() -> None:
    assert str(SettingError("rl.optim.learning_rate", 1e-5, "?")).startswith("rl.optim.learning_rate=1e-5:")


def test_the_error_of_a_setting_reaches_another_process_whole() -> None:
    made = pickle.loads(pickle.dumps(SettingError("rl.steps", 0, "must be above 0")))
    assert (made.key, made.value, made.remedy, str(made)) == (
        "rl.steps",
        0,
        "must be above 0",
        "rl.steps=0: must be above 0",
    )
