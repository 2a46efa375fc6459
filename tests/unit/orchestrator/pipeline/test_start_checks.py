"""Checks of files, limits and models fail at the start, before the run writes a file."""

import json
import struct
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny_models

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.definition import USUAL_CHANCE
from temper.envs.core.thinking_mode import NestedThinkingMix, ThinkingMix
from temper.envs.data.config import DataConfig
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.__main__ import main
from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.supervised import DpoConfig, SftConfig, SftDataConfig
from temper.orchestrator.pipeline.config import Config, load_config, usual_sections
from temper.orchestrator.pipeline.continuation import check_continuation
from temper.orchestrator.pipeline.finding import Finding, Level
from temper.orchestrator.pipeline.prepare import wanted_processes
from temper.orchestrator.pipeline.settings_checks import check_hangs, check_penalties, check_samples, check_turns
from temper.orchestrator.pipeline.start_checks import (
    Start,
    audit_rewards,
    check_before,
    check_model,
    check_positions,
    check_prompts,
    check_rewards,
    check_rows,
    needs_of,
)
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.config import RolloutConfig
from temper.rollout.weights.weight_files import require_complete

DEMO = Path("configs/demo.yaml")
ROW = '{"question": "What is 1 + 1?", "answer": "#### 2"}\n'
CHAT = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}\n'


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = [ROW.replace("1 + 1", f"1 + {n}") for n in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    (tmp_path / "torn.jsonl").write_text("".join(rows) + '{"question": "What is')
    (tmp_path / "long.jsonl").write_text("".join(rows) + ROW.replace("1 + 1", "1 + " * 2000))
    (tmp_path / "chats.jsonl").write_text(CHAT + '{"messages": "Hi"}\n')
    (tmp_path / "pairs.jsonl").write_text(CHAT)
    (tmp_path / "no_import.py").write_text("import a_library_that_is_not_there\n")
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("envs.math.data={0}/none.jsonl", "{0}/none.jsonl"),
        ("envs.math.data={0}/torn.jsonl", "{0}/torn.jsonl:65"),
        ("envs.math.data={0}/long.jsonl", "1 of 65 rows"),
        ("sft.data={0}/none.jsonl", "none.jsonl"),
        ("sft.data={0}/chats.jsonl", "{0}/chats.jsonl:2:"),
        ("stages=[init,dpo] dpo.data={0}/pairs.jsonl", "{0}/pairs.jsonl:1:"),
        ("stages=[init,dpo,dpo] dpo-2.data={0}/none.jsonl", "none.jsonl"),
        ("envs.no_import.share=1", "'no_import'"),
        ("model.path={0}/none", "{0}/none"),
        ("envs.math.reward=support.user_functions.broken", "envs.math.reward"),
        ("envs.math.reward=support.user_functions.parts envs.math.weights.rigth=1", "'right'"),
        ("rl.step=7", "rl.steps"),
    ],
)
def test_a_mistake_in_files_is_said_at_once_and_leaves_nothing_behind(
    files: Path, overrides: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(files)
    began = time.monotonic()
    assert main(["run", str(DEMO), f"runs_dir={files}/runs", "name=job", *overrides.format(files).split()]) == 2
    assert time.monotonic() - began < 30  # starts no engine
    assert said.format(files) in capsys.readouterr().err
    assert not (files / "runs").exists()


def test_weights_combine_a_users_reward_with_a_judge() -> None:
    judge = "envs.math.judge={url: 'http://127.0.0.1:9/v1', model: judge}"
    given = ["envs.math.reward=support.user_functions.parts", "envs.math.weights={right: 1, judge: 0.5}"]
    check_rewards(start(*given, judge))
    with pytest.raises(ValueError, match="judge"):
        check_rewards(start(*given))


def test_a_disk_that_can_not_hold_a_checkpoint_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = ["model.fresh.hidden_size=65536", "model.fresh.intermediate_size=1048576", "model.fresh.pattern=----"]
    assert main(["run", str(DEMO), f"runs_dir={tmp_path}/runs", "name=job", *huge]) == 1
    assert f"{tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_model_directory_is_whole_or_says_what_it_lacks(tmp_path: Path) -> None:
    model = tiny_models.llama(tmp_path / "model")
    assert require_complete(model) > 0
    weights = model / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-4])
    with pytest.raises(ValueError, match=rf"{len(content) - 4} .* {len(content)}"):
        require_complete(model)
    weights.write_bytes(content[:100])
    with pytest.raises(ValueError, match="100 "):
        require_complete(model)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"\*.safetensors"):
        require_complete(model)


def test_an_index_tells_which_files_a_model_must_have(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("a", "b"):
        head = json.dumps({name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
        (tmp_path / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(24))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    assert require_complete(tmp_path) == 12
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "c": "b.safetensors"}}))
    with pytest.raises(ValueError, match=r"b\.safetensors .* c"):
        require_complete(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "c": "c.safetensors"}}))
    with pytest.raises(FileNotFoundError, match=r"c\.safetensors"):
        require_complete(tmp_path)


def test_rows_of_data_without_demonstrations_are_no_supervised_data(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(DEMO), f"runs_dir={files}/runs", "name=job", f"envs.math.data={files}/rows.jsonl"]) == 2
    assert "'math'" in capsys.readouterr().err


def test_a_run_that_trained_nothing_is_not_held_by_a_model_that_it_shall_not_have_any_more(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunDir(files / "runs" / "job")
    folder.open()
    for name in ("first", "second"):
        (files / name).mkdir()
        (files / name / "notes.txt").write_text(name)
    given = [f"runs_dir={files}/runs", "name=job"]
    check_continuation(load_config(DEMO, [*given, f"model.path={files}/first"]), folder)
    folder.store(replace(folder.state(), done={"init": 0}, model=f"{files}/first"))
    folder.close()
    assert main(["run", str(DEMO), *given, f"model.path={files}/second"]) == 2
    assert f"{files}/second" in capsys.readouterr().err


def test_a_stage_does_not_go_on_from_checkpoints_of_which_the_run_knows_nothing(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = files / "runs" / "job" / "checkpoints" / "rl"
    (foreign / "000025").mkdir(parents=True)
    assert main(["run", str(DEMO), f"runs_dir={files}/runs", "name=job"]) == 2
    assert f"{foreign}" in capsys.readouterr().err
    assert [path.name for path in foreign.parent.parent.iterdir()] == ["checkpoints"]


def start(*overrides: str) -> Start:
    config = load_config(DEMO, ["sft.shares.math=0", *overrides])
    return Start(config=config, ahead=config.instances, model=None)


def settings_of(*overrides: str) -> tuple[Config, list[StageInstance]]:
    found = start(*overrides)
    return found.config, found.ahead


def warned(found: Iterable[Finding]) -> list[str]:
    return [one.what for one in found if one.level is Level.WARNING]


def test_engines_are_counted_for_each_stage_that_plays_episodes() -> None:
    own = load_config(
        DEMO, ["rollout.workers=2", "learner.ranks=4", "dpo.batch_size=4", "stages=[init,dpo,eval,report]"]
    )
    rows = replace(
        own, sections={**own.sections, "dpo": replace(own.section(DpoConfig), data=DataConfig(path="pairs.jsonl"))}
    )
    _, dpo, evaluation, report = own.instances
    assert wanted_processes(own, [dpo]).gpus == 2 + 4  # it pairs answers of the policy
    assert wanted_processes(rows, [dpo]).gpus == 4
    assert wanted_processes(own, [evaluation, report]).gpus == 2
    assert wanted_processes(own, [report]).gpus == 0


def test_a_model_without_a_class_is_refused_before_the_run_starts(tmp_path: Path) -> None:
    model = tiny_models.nemotron_h(tmp_path / "model")
    written = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(written | {"model_type": "nobodys"}))
    config = load_config(DEMO, [f"model.path={model}"])
    with pytest.raises(ValueError, match="nobodys"):
        check_before(config, config.instances, tmp_path / "run")


def test_an_engine_with_more_tokens_than_positions_is_refused(tmp_path: Path) -> None:
    longer = ["rollout.engine.max_model_len=3000"]
    with pytest.raises(ValueError, match=r"rollout\.engine\.max_model_len=3000.*model\.fresh\.max_positions"):
        check_before(config := load_config(DEMO, longer), config.instances, tmp_path / "run")
    model = tiny_models.nemotron_h(tmp_path / "model")
    longer.append(f"model.path={model}")
    with pytest.raises(ValueError, match=r"rollout\.engine\.max_model_len=3000"):
        check_positions(Start(config=(config := load_config(DEMO, longer)), ahead=config.instances, model=model))
    check_positions(
        Start(config=load_config(DEMO, [*longer, "rollout.engine.extra.hf_overrides={}"]), ahead=[], model=model)
    )


def test_a_limit_of_turns_that_cuts_an_environment_short_is_said() -> None:
    lake = "envs.lake={kind: gym, options: {id: FrozenLake-v1}}"
    assert warned(check_turns(*settings_of(lake))) == []
    assert warned(check_turns(*settings_of(lake, "rollout.limits.turns=64"))) == []
    said = warned(check_turns(*settings_of(lake, "envs.tool_use.max_turns=6", "rollout.limits.turns=5")))
    assert [("lake" in one, "tool_use" in one) for one in said] in (
        [(True, False), (False, True)],
        [(False, True), (True, False)],
    )


def test_rows_whose_prompt_fills_an_episode_are_counted_and_refused_or_let_pass_by_on_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    questions = ["2+2=?", "What is 1+1? " * 20, "What is 1+2? " * 40]
    path.write_text("\n".join(json.dumps({"question": said, "answer": "#### 4"}) for said in questions))

    def limited(total: int, *more: str) -> list[str]:
        limits = (f"rollout.limits.total_tokens={total}", f"rollout.limits.turn_tokens={min(total, 128)}")
        longest = f"rollout.engine.max_model_len={total}"
        return warned(check_prompts(start(f"envs.math.data={path}", *limits, longest, *more)))

    assert limited(2000) == []
    with pytest.raises(ValueError, match=r"2 of 3 .*=250.* 3 .* 5\d\d, .* 2 .* 2\d\d.*on_error=skip"):
        limited(250)
    (note,) = limited(250, "envs.math.on_error=skip")
    tokens = int(note.partition("row 3 has ")[2].partition(",")[0])
    assert limited(tokens + 1, "envs.math.on_error=skip") == []
    assert len(limited(tokens, "envs.math.on_error=skip")) == 1


def test_questions_with_different_answers_are_named_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": "2+2?", "answer": answer}) + "\n" for answer in ("4", "4", "5")))
    (note,) = warned(check_rows(start(f"envs.math.data={path}")))
    assert all(named in note for named in ("rows.jsonl", "1 repeat", "1 questions", "rows 1 and 3"))
    assert warned(check_rows(start())) == []


@pytest.mark.parametrize("streaming", [False, True])
def test_fields_that_nothing_reads_are_named_with_a_count(tmp_path: Path, streaming: bool) -> None:
    path = tmp_path / "rows.jsonl"
    read = {"id": 7, "system": "Be brief.", "part": "train", "url": None}
    rows = [{"question": f"{n}+2?", "answer": "4", "source": "a", "time": n or None} | read for n in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"{{path: {path}, streaming: {json.dumps(streaming)}}}"
    split = "envs.math.split={by: column, column: part}"
    (note,) = warned(check_rows(start(f"envs.math.data={data}", split)))
    assert all(named in note for named in ("2 have fields that are not read (source)", "1 have", "(time)"))
    rewarded = f"envs.own={{data: {data}, reward: support.user_functions.parts}}"
    assert warned(check_rows(start(rewarded))) == []


def test_a_run_says_so_before_it_writes_anything(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = (json.dumps({"question": f"What is 1+{n}? " * 40, "answer": "#### 2"}) + "\n" for n in range(30))
    path.write_text("".join(rows))
    given = ["rollout.limits.turns=2", f"envs.math.data={path}", "sft.shares.math=0"]
    said = [*given, f"runs_dir={tmp_path / 'runs'}"]
    folder = tmp_path / "runs" / "demo"
    with pytest.raises(ValueError, match="30 of 30 "):
        check_before(load_config(DEMO, said), load_config(DEMO, said).instances, folder)
    config = load_config(DEMO, [*said, "envs.math.on_error=skip"])
    turns, prompts = warned(check_before(config, config.instances, folder))
    assert "rollout.limits.turns=2" in turns
    assert "prompt_too_long" in prompts
    assert warned(check_before(config, [one for one in config.instances if one.name == "sft"], folder)) == []
    assert not folder.exists()


def test_a_reward_that_pays_for_one_answer_is_warned_of_and_measured(files: Path) -> None:
    own = f"envs.own={{data: {files}/rows.jsonl, reward: '{files}/mine.py:%s'}}"
    (files / "mine.py").write_text(
        "def brief(answer, row): return float(len(answer) < 9)\n"
        "def exact(answer, row): return float(answer == 'secret')\n"
    )
    found = list(audit_rewards(start(own % "brief")))
    assert warned(found)
    assert metrics_of(found) == {"env/own/best_constant": 1.0}
    found = list(audit_rewards(start(own % "exact")))
    assert warned(found) == []
    assert metrics_of(found) == {"env/own/best_constant": 0.0}
    assert list(audit_rewards(start())) == []  # no reward of a user, and many different answers


def test_few_answers_are_measured_without_a_reward_of_a_user() -> None:
    (found,) = audit_rewards(start("envs.multiple_choice={}"))
    assert found.level is Level.WARNING
    assert USUAL_CHANCE < found.metrics["env/multiple_choice/best_constant"] < 0.7


def metrics_of(found: Iterable[Finding]) -> dict[str, float]:
    return {name: value for one in found for name, value in one.metrics.items()}


def test_a_stage_that_gives_up_before_a_hang_is_found_says_so() -> None:
    (note,) = warned(check_hangs(*settings_of("supervision.stalled_s=180", "rl.timeout_s=120")))
    assert "rl.timeout_s=120" in note
    assert "supervision.stalled_s=180" in note
    assert warned(check_hangs(*settings_of())) == []


@pytest.mark.parametrize("key", ["eval.samples", "rl.eval_samples"])
@pytest.mark.parametrize(("sampling", "answers"), [("temperature=1", 4), ("temperature=0", 1), ("top_k=1", 1)])
def test_equal_answers_are_asked_for_once(key: str, sampling: str, answers: int) -> None:
    """An interval of four equal answers would be too narrow."""
    greedy = f"{key.removesuffix('samples')}sampling.{sampling}"
    config, ahead = settings_of("eval.samples=1", "rl.eval_every=1", f"{key}=4", greedy)
    settings = list(map(config.settings, ahead))
    evaluated = {one.answers_per_task for one in settings if isinstance(one, EvalConfig)}
    between_steps = {one.eval_answers_per_task for one in settings if isinstance(one, RlConfig)}
    assert (evaluated, between_steps) == (({answers}, {1}) if key == "eval.samples" else ({1}, {answers}))
    notes = warned(check_samples(config, ahead))
    assert [f"{key}=4" in note for note in notes] == [True] * (answers == 1)


def test_a_penalty_that_outruns_the_accuracy_is_warned_of() -> None:
    (note,) = warned(check_penalties(*settings_of("rl.shaping.accuracy_margin=0.1")))
    assert "rl.shaping.penalty_step=1" in note
    assert warned(check_penalties(*settings_of("rl.shaping={accuracy_margin: 0.1, penalty_step: 0.5}"))) == []


def test_every_row_that_is_read_is_looked_at_for_system_texts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    function = {"name": "get", "parameters": {"type": "dict", "properties": {}, "required": []}}
    for count in (20, 21):
        asked = [[{"role": "user", "content": f"{n}?"}] for n in range(count)]
        for messages in asked[20:]:
            messages.insert(0, {"role": "system", "content": "Be brief."})
        rows = [{"question": [each], "function": [function], "ground_truth": [{"get": {}}]} for each in asked]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for streaming in (False, True):
            env = bind("tool_use", EnvConfig(data=DataConfig(path=str(path), streaming=streaming)))
            needs = needs_of({"tool_use": env}, seed=1, left_out=False)
            assert (needs.tools, needs.system) == (True, count == 21)


ENVS = load_config(DEMO, []).envs
BUDGETS = usual_sections() | {"rl": RlConfig(thinking=NestedThinkingMix(budget=0.5, budgets=[16]))}


def saved_template(directory: Path, template: str) -> Path:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory


def test_a_template_that_ignores_the_mode_is_refused_where_a_stage_switches_thinking_off(tmp_path: Path) -> None:
    template = str(byte_tokenizer().chat_template)
    model = saved_template(tiny_models.nemotron_h(tmp_path / "m"), template.replace("if thinking else", "if true else"))
    bare = SftConfig(reasoning=SftDataConfig(thinking=ThinkingMix(no_thinking=0.1)))
    with pytest.raises(ValueError, match="sft"):
        check_model(
            model, Config(name="x", envs=ENVS, stages=["init", "sft"], sections=usual_sections() | {"sft": bare})
        )
    check_model(model, Config(name="x", envs=ENVS, stages=["init", "sft"]))  # by default every sample has its thinking
    check_model(model, Config(name="x", envs=ENVS, stages=["init", "rl"], sections=BUDGETS))


def test_a_template_that_does_not_show_the_closing_has_the_usual_one_or_that_of_the_configuration(
    tmp_path: Path,
) -> None:
    plain = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}{{ '<think>' if add_generation_prompt }}"
    model = saved_template(tiny_models.nemotron_h(tmp_path / "m"), plain)
    check_model(model, Config(name="x", envs=ENVS, stages=["init", "rl"], sections=BUDGETS))
    given = RolloutConfig(thinking=ThinkingConfig(closing="\n</think>\n\n"))
    check_model(model, Config(name="x", envs=ENVS, stages=["init", "rl"], sections=BUDGETS, rollout=given))
    check_model(model, Config(name="x", envs=ENVS, stages=["init", "rl"]))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.thinking.budget=0.5", "rl.thinking.budgets"),
        ("rl.thinking={budget: 0.5, budgets: [-4]}", "rl.thinking.budgets"),
        ("rl.thinking={budget: 0.5, budgets: [450]}", "rollout.limits.total_tokens=512"),
        ("rollout.thinking.grace=-1", "grace=-1"),
        ("rft.thinking.no_thinking=0.1", "rft.thinking"),
        ("sft.reasoning.low_effort_keep=0", "low_effort_keep=0"),
    ],
)
def test_impossible_budgets_are_refused_when_the_configuration_is_read(override: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_config(DEMO, [override])
