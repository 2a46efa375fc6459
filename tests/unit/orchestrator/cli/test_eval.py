"""The command `eval`: its options, and an evaluation of a served model from end to end."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import tiny_models
from support.chat_server import KEY, Body, ChatServerDouble, told

from temper.envs.data.config import DataConfig
from temper.envs.presets.catalog import PRESETS
from temper.orchestrator.__main__ import main, parser
from temper.orchestrator.cli import eval_command
from temper.orchestrator.cli.eval_command import environments, read_escapes, settings_of_options
from temper.orchestrator.cli.look_commands import parse_groups
from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.pipeline.config import Config, load_config, make_config, save_config
from temper.orchestrator.pipeline.eval_config import slug
from temper.orchestrator.pipeline.profiles.resolve import resolve_profile
from temper.orchestrator.run.folder import RunDir, RunState

DEMO = Path(__file__).resolve().parents[4] / "configs" / "demo.yaml"


def given(*arguments: str) -> argparse.Namespace:
    return parser().parse_args(["eval", *arguments])


def config(*arguments: str) -> Config:
    command = given(*arguments)
    return make_config(resolve_profile(eval_command._of_model_or_run(command, eval_command._asked(command))))


def of_eval(made: Config) -> EvalConfig:
    settings = made.settings(made.instances[-1])
    assert isinstance(settings, EvalConfig)
    return settings


def sums(body: Body) -> dict[str, Any]:
    """Answer the sum of two numbers, or 0 for any other question."""
    question = body["messages"][-1]["content"]
    try:
        value = eval(question.removesuffix("=?"), {"__builtins__": {}})
    except SyntaxError:
        value = 0
    return told(f"\\boxed{{{value}}}", reasoning_content="easy")


def test_options_are_settings_of_an_evaluation() -> None:
    assert settings_of_options(given("m", "--greedy")) == {"eval": {"samples": 1, "sampling": {"temperature": 0.0}}}
    assert settings_of_options(given("m", "--greedy", "--samples", "3"))["eval"]["samples"] == 3
    assert settings_of_options(given("m")) == {}
    everything = given(
        *("m", "--temperature", "0.6", "--top-p", "0.9", "--top-k", "20", "--min-p", "0.1", "--max-tokens", "64"),
        *("--stop", "\\n\\n", "--stop", "Question:", "--seed", "3", "--limit", "7"),
    )
    sampling = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "max_tokens": 64,
        "stop": ["\n\n", "Question:"],
    }
    assert settings_of_options(everything) == {"seed": 3, "eval": {"tasks": 7, "sampling": sampling}}
    with pytest.raises(ValueError, match="--greedy .*--temperature"):
        settings_of_options(given("m", "--greedy", "--temperature", "1"))


def test_escapes_of_a_stop_text_are_what_they_mean() -> None:
    assert [read_escapes(text) for text in ("\\n", "\\t|", "a\\\\n", "</s>", "\u00e9\u4e2d\\n")] == [
        *("\n", "\t|", "a\\n", "</s>", "\u00e9\u4e2d\n")
    ]
    with pytest.raises(ValueError, match="escape"):
        read_escapes("\\x")


def test_environments_are_named_with_their_data() -> None:
    for option in ("--data", "--eval-data"):  # `--data` is an alias, named like the setting
        assert environments(given("m", "--env", "math", option, "a.jsonl")) == {"math": "a.jsonl"}
    assert environments(given("m", "--env", "math=a.jsonl", "--env", "code")) == {"math": "a.jsonl", "code": None}
    for wrong in (
        ["--data", "a"],
        ["--env", "a", "--env", "b", "--data", "c"],
        ["--env", "a", "--env", "a=b"],
    ):
        with pytest.raises(ValueError, match="--[ed]"):
            environments(given("m", *wrong))


def test_standard_sets_are_asked_by_name(tmp_path: Path) -> None:
    model = str(tiny_models.qwen3(tmp_path / "mine"))
    part = "gsm8k={split: train, revision: main}"
    made = config(model, "--preset", part, "--env", "math", "--greedy", "--runs-dir", str(tmp_path))
    asked = made.envs["gsm8k"]
    assert asked.eval_data is not None
    assert (asked.preset, asked.kind, asked.eval_data.path, asked.eval_data.split) == (
        *("gsm8k", "math", "openai/gsm8k", "train"),
    )
    assert (list(made.envs), of_eval(made).samples, of_eval(made).tasks) == (["math", "gsm8k"], 1, None)
    own = config(model, "--preset", "gsm8k=mine.jsonl", "--runs-dir", str(tmp_path)).envs["gsm8k"]
    assert own.eval_data == DataConfig(path="mine.jsonl")
    for wrong in (["--preset", "gsm8k", "--preset", "gsm8k"], ["--env", "gsm8k", "--preset", "gsm8k"]):
        with pytest.raises(ValueError, match="--preset"):
            config(model, *wrong)
    with pytest.raises(ValueError, match="'gsm9k'"):
        config(model, "--preset", "gsm9k")


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (["--preset", "gsm8k"], 4096),
        (["--preset", "gsm8k", "--preset", "aime24"], 8192),
        (["--preset", "gsm8k", "--env", "math"], None),
        (["--preset", "gsm8k", "--max-tokens", "77"], 77),
        (["eval.sampling.max_tokens=77", "--preset", "gsm8k"], 77),
        (["rollout.limits.turn_tokens=5000", "--preset", "gsm8k"], None),
        (["rollout.limits.total_tokens=5000", "--preset", "gsm8k"], None),
    ],
)
def test_a_standard_set_limits_answers_unless_the_user_does(
    arguments: list[str], tokens: int | None, tmp_path: Path
) -> None:
    model = tiny_models.qwen3(tmp_path / "mine")
    settings = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 32768}
    (model / "config.json").write_text(json.dumps(settings))
    made = config(str(model), *arguments, "--runs-dir", str(tmp_path))
    assert of_eval(made).sampling.max_tokens == tokens


def test_the_limit_of_a_standard_set_is_at_most_the_models(tmp_path: Path) -> None:
    made = config(str(tiny_models.qwen3(tmp_path / "mine")), "--preset", "gsm8k", "--runs-dir", str(tmp_path))
    assert of_eval(made).sampling.max_tokens == made.rollout.limits.turn_tokens == 1024


def test_standard_sets_are_listed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "presets"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in PRESETS)
    assert main(["env", "presets", *PRESETS]) == 0
    said = capsys.readouterr().out
    assert all(preset.title in said for preset in PRESETS.values())
    assert main(["env", "presets", "gsm9k"]) == 2
    assert "gsm8k" in capsys.readouterr().err


def test_a_model_alone_needs_no_configuration(tmp_path: Path) -> None:
    model = tiny_models.qwen3(tmp_path / "Tiny Qwen3.x")
    made = config(str(model), "--env", "math", "--samples", "2", "--runs-dir", str(tmp_path))
    assert [one.name for one in made.instances] == ["init", "Tiny-Qwen3-x"]
    assert (of_eval(made).samples, of_eval(made).tasks) == (2, None)
    limits, engine = made.rollout.limits, made.rollout.engine
    assert (limits.turn_tokens, limits.total_tokens, engine.max_model_len) == (1024, 1024, 1024)
    assert made.name.startswith("eval-Tiny-Qwen3-x-2")
    with pytest.raises(ValueError, match="--env"):
        config(str(model))
    with pytest.raises(FileNotFoundError, match="nothing"):
        config(str(tmp_path / "nothing"), "--env", "math")
    with pytest.raises(ValueError, match="maths"):
        config(str(model), "--env", "maths")


def test_a_run_is_named_by_its_folder_or_its_name_and_brings_its_settings(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "demo")
    folder.root.mkdir()
    run = load_config(DEMO, ["name=demo", f"runs_dir={tmp_path}", "seed=5", "rollout.limits.turn_tokens=99"])
    save_config(run, folder.config)
    folder.store(RunState(model="checkpoints/rl/000007", label="rl"))
    for name in ("demo", str(folder.root)):
        made = config(name, "--runs-dir", str(tmp_path))
        assert made.model.path == str((folder.root / "checkpoints/rl/000007").resolve())
        assert sorted(made.envs) == sorted(run.envs)
        assert (made.seed, made.rollout.limits.turn_tokens, made.instances[-1].name) == (5, 99, "demo-rl")
        assert made.name != "demo"
    one = config("demo", "eval.tasks=9", "--runs-dir", str(tmp_path), "--env", "math", "--name", "mine")
    assert (list(one.envs), one.envs["math"].level) == (["math"], run.envs["math"].level)
    assert (one.name, of_eval(one).tasks) == ("mine", 9)


def test_a_misspelt_run_or_model_is_no_name_on_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "runs/dmeo", "--env", "math"]) == 2
    assert "runs/dmeo" in capsys.readouterr().err
    assert main(["serve", "runs/dmeo"]) == 2
    assert "runs/dmeo" in capsys.readouterr().err
    assert main(["env", "grade", "--env", "math", "--data", "runs/rows", "--responses", "x", "--out", "y"]) == 2
    assert "runs/rows" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="runs/dmeo"):
        _ = ModelSource(path="runs/dmeo").folder


def test_a_run_has_its_name_in_every_command_unless_something_else_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    named = Path("runs/demo")
    single = [["status", "demo"], ["scale", "demo", "--rollout-workers", "1"]]
    assert [parser().parse_args(command).run for command in single] == [named] * 2
    assert parser().parse_args(["serve", "demo"]).model == named
    assert parser().parse_args(["fork", "demo", "--from", "rl", "name=x"]).source == named
    assert parser().parse_args(["report --compare", "demo", "other"]).evaluations == [named, Path("other")]
    assert parse_groups(["a=demo,other"]) == {"a": [named, Path("other")]}
    (tmp_path / "demo").mkdir()
    assert parser().parse_args(["serve", "demo"]).model == Path("demo")


def test_a_model_may_lie_in_the_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tiny_models.qwen3(tmp_path / "mine")
    assert ModelSource(path="~/mine").folder == model.resolve()
    assert config("~/mine", "--env", "math").model.path == "~/mine"


def test_a_label_is_never_the_name_of_something_else() -> None:
    assert [slug(text) for text in ("Qwen/Qwen3-0.6B", "model", "eval", "//")] == [
        *("Qwen-Qwen3-0-6B", "model-model", "model-eval", "model-model")
    ]


def evaluated(server: ChatServerDouble, folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the result of an evaluation of two environments behind a server."""
    arguments = ["--url", server.url, "--env", "math", "--limit", "4", "--samples", "2", "--name", "it"]
    status = main(
        ["eval", *arguments, "--runs-dir", str(folder), "--request-retries", "0", "--temperature", "0.5", *more]
    )
    found = list((folder / "it" / "eval").glob("*.json"))
    return status, json.loads(found[0].read_text(encoding="utf-8")) if found else {}


def test_a_model_behind_a_server_is_evaluated_without_any_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ChatServerDouble(sums, key=KEY) as server:
        status, result = evaluated(server, tmp_path)
        again, _ = evaluated(server, tmp_path)
    shown = capsys.readouterr()
    assert (status, again) == (0, 2)
    assert shown.err
    assert 0 < result["envs"]["math"]["avg_at_k"] <= 1
    assert (result["envs"]["math"]["tokens"], result["k"], result["sampling"]["temperature"]) == (9, 2, 0.5)
    assert [(task["right"] in (0, 2), task["scored"]) for task in result["tasks"]["math"]] == [(True, 2)] * 4
    assert (result["model"], result["url"]) == ("tiny", server.url)
    assert "avg@2" in shown.out
    (lines,) = (tmp_path / "it" / "trajectories").glob("*.jsonl")
    assert len(lines.read_text(encoding="utf-8").splitlines()) == 8
    files = [path for path in (tmp_path / "it").rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in files)
    assert KEY not in shown.out + shown.err


def test_a_server_that_is_slow_is_waited_for_as_long_as_it_answers(tmp_path: Path) -> None:
    with ChatServerDouble(sums, seconds=0.3) as server:
        assert evaluated(server, tmp_path, "--concurrency", "1", "eval.timeout_s=1.5")[0] == 0
        assert len(server.bodies) == 8
        server.seconds = 3.0
        assert evaluated(server, tmp_path / "silent", "eval.timeout_s=1.5")[0] == 3


def test_a_server_that_does_not_answer_as_it_should_is_no_score_of_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ChatServerDouble(sums) as server:
        assert evaluated(server, tmp_path, "--model", "another")[0] == 2
        assert "tiny" in capsys.readouterr().err
        server.faults = ["500"] * 16
        status, result = evaluated(server, tmp_path)
    assert (status, result) == (1, {})
    assert "TooManyFailures" in capsys.readouterr().err
    with ChatServerDouble(sums, key=KEY) as server:
        assert evaluated(server, tmp_path)[0] == 1
        assert main(["eval", "some-model", "--url", server.url, "--env", "math"]) == 2
    assert main(["eval", "--url", "http://127.0.0.1:9/v1", "--env", "math", "--request-retries", "0"]) == 2


def test_a_configuration_asks_a_server_in_its_environments(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        yaml.safe_dump({"name": "x", "envs": {"math": {"level": 2}, "tool_use": {}}, "seed": 7}), encoding="utf-8"
    )
    with ChatServerDouble(sums) as server:
        status = main(
            ["eval", str(file), "--url", server.url, "--env", "math", "--runs-dir", str(tmp_path), "--name", "it"]
            + ["--limit", "2", "--greedy", "rollout.retries=0"]
        )
    (path,) = (tmp_path / "it" / "eval").glob("*.json")
    result = json.loads(path.read_text(encoding="utf-8"))
    assert (status, list(result["envs"]), result["k"]) == (0, ["math"], 1)
    assert server.bodies[0]["temperature"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models/mine", "--env", "math", "--model", "other", "--timeout", "9"], "--model, --timeout"),
        (["models/mine", "--env", "math", "--key-variable", "KEY"], "--key-variable"),
        ([str(DEMO), "--runs-dir", "elsewhere"], "--runs-dir"),
        (["--url", "http://127.0.0.1:9/v1", "--env", "math", "rollout.limits.turn_tokens=9"], "--max-tokens"),
        (
            ["--url", "http://127.0.0.1:9/v1", "--env", "math", "rollout.thinking.grace=9"],
            "rollout.thinking.grace=9",
        ),
        (["--url", "http://127.0.0.1:9/v1", "--env", "math", "--samples", "0"], "eval.samples=0"),
    ],
)
def test_what_a_way_of_evaluating_does_not_read_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["eval", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_what_is_wrong_with_a_command_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--env", "math"]) == 2
    assert "--url" in capsys.readouterr().err
    assert main(["eval", str(DEMO), "--env", "math"]) == 2
    assert "--env" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["eval", "m", "--env", "math", "nonsense"])
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    shown = capsys.readouterr().out
    assert "WHAT is one of" in shown
    assert "  math                   gsm8k, answer, math; generates tasks too" in shown


def test_an_evaluation_of_a_server_that_was_interrupted_asks_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--concurrency", "1", "rollout.retries=0")
    with ChatServerDouble(sums) as server:
        status, whole = evaluated(server, tmp_path / "whole", *more)
        first = len(server.bodies)
        known = server.bodies[0]["messages"]  # threads start the episodes, so requests arrive in any order
        server.say = lambda body: sums(body) if body["messages"] == known else {"message": "no answer"}
        broken, nothing = evaluated(server, tmp_path / "parts", *more)
        server.say = sums
        (kept,) = (tmp_path / "parts" / "it" / "eval").glob("*.answers.jsonl")
        with kept.open("a") as file:
            file.write('{"content": "torn')
        other, _ = evaluated(server, tmp_path / "parts", *more, "--seed", "2")
        said = capsys.readouterr().err
        server.bodies.clear()
        again, parts = evaluated(server, tmp_path / "parts", *more)
    assert (status, broken, nothing, other, again) == (0, 1, {}, 2, 0)
    assert "another evaluation, of seed 1 (now 2)" in said
    assert (first, len(server.bodies)) == (8, 6)
    assert not kept.exists()
    assert parts["tasks"] == whole["tasks"]
    assert parts["envs"] == whole["envs"]
    (lines,) = (tmp_path / "parts" / "it" / "trajectories").glob("*.jsonl")
    assert len(lines.read_text(encoding="utf-8").splitlines()) == 8


def test_answers_that_were_asked_or_judged_otherwise_are_not_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ChatServerDouble(sums) as server:
        server.faults = ["", ""] + ["500"] * 6
        assert evaluated(server, tmp_path, "--concurrency", "1", "rollout.retries=0")[0] == 1
        capsys.readouterr()
        server.faults = []
        for name, setting in (
            ("thinking", "envs.math.thinking=false"),
            ("max_turns", "envs.math.max_turns=3"),
            ("credit", "envs.math.credit=fraction"),
            ("weights", "envs.math.weights={format: 1}"),
        ):
            assert evaluated(server, tmp_path, setting) == (2, {})
            assert f"another evaluation, of envs.math.{name} " in capsys.readouterr().err
        assert evaluated(server, tmp_path, "envs.math.threads=3")[0] == 0
