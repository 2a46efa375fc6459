"""The configuration: shipped files load, and errors name the wrong key."""

from pathlib import Path

import pytest
from support.refusals import refuses

from temper.envs.config import EnvConfig
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.schema import to_settings
from temper.orchestrator.config.supervised import DpoConfig, RftConfig
from temper.orchestrator.pipeline.config import (
    flat_config,
    load_config,
    load_unresolved_config,
    make_config,
    save_config,
)
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.stages.registry import all_stages
from temper.rollout.sampling import Sampling

CONFIGS = sorted(Path("configs").glob("*.yaml"))
DEMO = Path("configs/demo.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert load_config(path, []).stages


def test_the_type_of_the_output_layer_is_set_on_both_sides_or_on_none() -> None:
    with pytest.raises(ValueError, match=r"learner\.float32_head"):
        load_config(DEMO, ["rollout.engine.extra={hf_overrides: {head_dtype: float32}}"])
    assert load_config(DEMO, ["learner.float32_head=true"]).learner.float32_head


@pytest.mark.parametrize("word", ["on", "off"])
def test_on_and_off_are_words_of_the_settings_that_have_them(word: str, tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text(f"rollout: {{engine: {{prefix_caching: {word}}}}}\n", encoding="utf-8")
    for config in (load_config(DEMO, [str(over)]), load_config(DEMO, [f"rollout.engine.prefix_caching={word}"])):
        assert config.rollout.engine.prefix_caching == word
        save_config(config, tmp_path / "saved.yaml")
        assert load_config(tmp_path / "saved.yaml", []) == config
    with pytest.raises(ValueError, match=r"rollout\.engine\.dtype"):
        load_config(DEMO, [f"rollout.engine.dtype={word}"])


def test_null_turns_adapters_off(tmp_path: Path) -> None:
    (tmp_path / "over.yaml").write_text("learner: {lora: {rank: 8, alpha: 16}}")
    over = str(tmp_path / "over.yaml")
    assert load_config(DEMO, [over]).learner.lora.rank == 8
    assert load_config(DEMO, [over, "learner.lora=null"]).learner.lora.rank == 0


def test_overrides_win_and_a_saved_configuration_is_the_same_again(tmp_path: Path) -> None:
    config = load_config(DEMO, ["rl.steps=7", "envs.math.level=2", "name=other"])
    assert (config.section(RlConfig).steps, config.envs["math"].level, config.name) == (7, 2, "other")
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml", []) == config
    assert flat_config(config)["rl.steps"] == "7"


def test_files_lie_over_one_another_in_the_order_in_which_they_are_given(tmp_path: Path) -> None:
    larger, shorter = tmp_path / "larger.yaml", tmp_path / "shorter.yml"
    larger.write_text(
        "envs: {math: {level: 2}}\nstages: [init, rl]\nrl: {steps: 90, group_size: 16}\nname: ${oc.env:RUN,mine}"
    )
    shorter.write_text("rl: {steps: 5}")
    demo = load_config(DEMO, [])
    config = load_config(DEMO, [str(larger), str(shorter), "rl.group_size=8"])
    rl = config.section(RlConfig)
    assert (rl.steps, rl.group_size, config.name) == (5, 8, "mine")
    assert (config.envs["math"].level, list(config.envs)) == (2, list(demo.envs))  # mappings are merged
    assert [one.name for one in config.instances] == ["init", "rl"]  # lists are replaced
    assert load_config(DEMO, ["rl.steps=7", str(shorter)]).section(RlConfig).steps == 5  # the last one wins


@pytest.mark.parametrize("text", [None, "- init", "rl: {", "name: ${", "name: caf\u00e9"])
def test_a_file_that_can_t_lie_over_another_is_named(text: str | None, tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    if text is not None:
        over.write_text(text, encoding="latin-1")
    with pytest.raises((ValueError, FileNotFoundError), match=r"over\.yaml"):
        load_config(DEMO, [str(over)])


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a b", " a", "a\n", "a\udcff", "$(id)", "a" * 300])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    """A run may have blanks in its name. An environment may not, because its name is a part of keys."""
    with refuses("envs"):
        make_config({"name": "mine", "envs": {name: {"kind": "math"}}})
    if name != "a b":
        with refuses("name"):
            make_config({"name": name, "envs": {}})
    make_config({"name": "a b", "envs": {"package.module-2_\u00e9": {"kind": "math"}}})


JUDGED = "envs.math.judge.url=http://127.0.0.1:1/v1 envs.math.judge.model=m"


@pytest.mark.parametrize(
    ("override", "key", "named"),
    [
        ("rl.stepz=7", "rl.stepz", ["rl.steps"]),
        ("rl.steps=many", "rl.steps", ["many"]),
        ("rl.group_size=1", "rl.group_size=1", ["2"]),
        ("eval.sampling.min_p=0.1 rollout.engine.speculation=ngram", "eval.sampling.min_p=0.1", ["speculation=ngram"]),
        (f"rl.thinking.nested_budgets=[8] {JUDGED} envs.math.judge.compare=true", "rl.thinking.nested_budgets", []),
        ("rl.thinking.nested_budgets=[8] rollout.thinking.announce=true", "rl.thinking.nested_budgets", ["announce"]),
        ("envs.math.judge.url=http://10.0.0.1/v1 envs.math.judge.model=m", "envs.math", ["hosts"]),
        ("envs.math.judge.model=/no/such/judge", "envs.math.judge.model", ["/no/such/judge", "judge.url"]),
        ("envs.math.agent=nowhere.solve", "envs.math", ["nowhere"]),
        ("rl.sampling.top_p=0.9", "rl.sampling.top_p=0.9", ["rl.sampling.temperature"]),
        ("rl.sampling.temperature=0", "rl.sampling.temperature=0", []),
        ("rl.sampling.max_tokens=9", "rl.sampling.max_tokens=9", ["rollout.limits.turn_tokens"]),
        ("rft.sampling.temperature=0", "rft.sampling.temperature=0", ["rft.samples=4"]),
        ("rft.sampling.stop=[x]", "rft.sampling.stop=['x']", []),
        ("dpo.sampling.temperature=0", "dpo.sampling.temperature=0", ["dpo.samples=8"]),
        ("dpo.sampling.top_p=0.9 dpo.data=pairs.jsonl", "dpo.sampling", ["dpo.data=pairs.jsonl"]),
        ("eval.budgets=[64] eval.sampling.max_tokens=32", "sampling.max_tokens=32", ["64"]),
        ("eval.sampling.top_p=2", "eval.sampling.top_p=2", []),
        ("stages=[init,sleep]", "stages", ["sleep", "init, sft, rft, dpo, rl, distill, eval, report"]),
        ("envs.maths.share=1", "envs.maths", ["math"]),
        ("sft.batch_size=33 learner.ranks=2", "sft.batch_size=33", ["learner.ranks=2"]),
        ("rollout.limits.total_tokens=4096", "rollout.limits.total_tokens=4096", ["max_model_len"]),
        ("learner.zero_stage=4", "learner.zero_stage", ["4", "0, 1, 2 or 3"]),
        ("learner.bf16=true", "learner.bf16", ["zero_stage"]),
        ("rollout.engine.dtype=int8", "rollout.engine.dtype", ["int8", "float32", "bfloat16", "float16", "auto"]),
        ("justaword", "justaword", ["key=value"]),
        ("stages=[init", "stages", []),
        ("name=${", "name", []),
        ("envs=[math,code]", "envs", ["{math: {}, code: {}}"]),
        ("envs.math=null", "envs.math", []),
        ("envs.math.data=[a.jsonl]", "envs.math.data", ["a.jsonl"]),
        ("envs.math.data.nope=3", "envs.math.data.nope", ["path, config"]),
        ("model=some/model", "model", ["{path: some/model}"]),
        ("stages=[init,rl,rl] rl-2=3", "rl-2=3", []),
        ("rl.shares=null", "rl.shares", []),
        ("stages=rl", "stages", ["[rl]"]),
        ("stages.rl=3", "stages", ["[rl]"]),
        ("envs.math.on_error=ignore", "envs.math.on_error", ["ignore", "raise", "skip"]),
        ("rl.over_sampling=1.5", "rl.over_sampling=1.5", ["rl.max_lag=1"]),
        ("rl.shares.maths=1", "rl.shares.maths", ["math, code, tool_use"]),
        ("sft.shares.math=-1", "sft.shares.math=-1", []),
    ],
)
def test_a_mistake_names_the_key_the_value_and_what_would_be_right(override: str, key: str, named: list[str]) -> None:
    with refuses(key, *named):
        load_config(DEMO, override.split())


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("envs.bench={preset: [gsm8k]}", "envs.bench.preset"),
        ("envs.bench={preset: 5}", "envs.bench"),
        ("rollout.engine.extra.hf_overrides=5", "rollout.engine.extra.hf_overrides"),
        ("rl.eval_sampling.top_p=2", "rl.eval_sampling"),
        ("eval.sampling.stop=['']", "eval.sampling"),
        ("rl.thinking.budget=2", "rl.thinking"),
        ("sft.data={path: ''}", "sft.data.path"),
        ("envs.math.judge.url=x", "envs.math.judge"),
        ("envs={'a\\1': {kind: math, judge: {url: 'http://x', model: m, timeout_s: 0}}}", "envs.a\\1.judge.timeout_s"),
        ("learner.zero_stage=off", "learner.zero_stage"),
        ("eval.sampling.stop=[1.10]", "eval.sampling.stop"),
        ("name=???", "name"),
        ("model.path=???", "model.path"),
    ],
)
def test_a_wrong_value_or_section_is_named_by_its_whole_key(override: str, key: str) -> None:
    with refuses(key):
        load_config(DEMO, [override])


def test_a_setting_of_an_entrys_data_keeps_its_path() -> None:
    overrides = ["stages=[init,{sft: {name: own, data: own.jsonl}}]", "sft.data=rows.jsonl", "own.data.split=train"]
    config = load_unresolved_config(DEMO, overrides)
    data = config.settings(config.instances[1]).data
    assert (data.path, data.split) == ("own.jsonl", "train")


def test_a_variable_may_name_a_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH", "gsm8k")
    config = load_unresolved_config(DEMO, ["envs.bench={preset: '${oc.env:BENCH}'}"])
    assert config.envs["bench"] == load_unresolved_config(DEMO, ["envs.bench={preset: gsm8k}"]).envs["bench"]


def test_what_stands_in_place_of_a_section_in_an_entry_of_stages_is_refused() -> None:
    with refuses("more.loss=3"):
        load_config(DEMO, ["stages=[init,{rl: {name: more, loss: 3}}]"])


def test_settings_of_a_stage_that_is_not_run_refuse_no_run() -> None:
    spread = "learner={ranks: 2, expert_parallel: 2, zero_stage: 2}"
    settings = ["sft.optim.kind=muon", spread, "sft.batch_size=33"]
    config = load_config(DEMO, [*settings, "stages=[init,rl,eval]"])
    assert [one.name for one in config.instances][:2] == ["init", "rl"]
    with pytest.raises(ValueError, match="sft.optim.kind=muon with learner.expert_parallel=2"):
        config.require_stage(single_instance(all_stages()["sft"]))
    named = ["stages=[init,{sft: {name: warm, optim: {kind: adamw}, batch_size: 34}},rl]"]
    assert load_config(DEMO, [*settings, *named]).instances[1].name == "warm"  # its own settings apply


def test_answers_that_are_imitated_or_told_apart_may_be_sampled_from_the_likeliest_tokens_alone() -> None:
    settings = ["top_p=0.9", "top_k=20", "temperature=0.7", "max_tokens=64"]
    config = load_config(DEMO, [f"{stage}.sampling.{one}" for stage in ("rft", "dpo") for one in settings])
    for part in (config.section(RftConfig), config.section(DpoConfig)):
        assert part.sampling == Sampling(top_p=0.9, top_k=20, temperature=0.7, max_tokens=64)
    greedy = load_config(DEMO, ["rft.sampling.temperature=0", "rft.samples=1"])
    assert greedy.section(RftConfig).sampling.greedy


@pytest.mark.parametrize(
    ("groups", "max_lag", "over_sampling", "slots"),
    [(20, 0, None, 20), (20, 2, None, 60), (20, 3, 0.25, 25), (20, 3, 1.5, 50), (20, 3, 3.0, 80), (2, 1, 0.1, 3)],
)
def test_so_many_groups_are_in_flight(groups: int, max_lag: int, over_sampling: float | None, slots: int) -> None:
    assert RlConfig(groups_per_step=groups, max_lag=max_lag, over_sampling=over_sampling).slots == slots


def test_the_options_of_an_environment_may_have_keys_that_are_no_text() -> None:
    options = {"config": {"weights": {1: 0.5, 2.5: {False: 3}}}}
    assert to_settings(EnvConfig, {"options": options}).options == options
