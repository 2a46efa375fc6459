"""Standard sets: each is found by its name, read in the form that is published, and never trained on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.binding import BoundEnv, EnvConfig, bind
from envs.core.task import Task
from envs.core.thinking_mode import OFF
from envs.data.config import DataConfig
from envs.playback import score
from envs.presets import tool_use
from envs.presets.catalog import PRESETS, with_preset
from envs.presets.preset import Preset
from envs.source import distinct, open_source
from orchestrator.pipeline.config import make_config
from orchestrator.settings.text import typed

Row = dict[str, Any]
BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
ROWS: dict[str, list[Row]] = {
    "gsm8k": [{"question": "How many are 3 and 4?", "answer": "3+4=<<3+4=7>>7.\n#### 7"}],
}
"""A row of each set, made up, in its published form."""
BESIDE: dict[str, dict[str, str]] = {}
"""Further files beside the rows, by name."""
RIGHT: dict[str, str] = {"gsm8k": "3+4 is \\boxed{7}"}
WRONG: dict[str, str] = {"gsm8k": "3+4 is \\boxed{8}"}
"""What is right and wrong for the first row of each."""
ASKED: dict[str, str] = {"gsm8k": f"How many are 3 and 4?{BOXED}"}
"""How its first row is put."""
SILENCE = {preset.name for preset in PRESETS.values() if preset.rule == tool_use.NO_CALL}
"""The sets in which no answer is right."""


def add_function_calls() -> None:
    """Add rows, files and answers of the leaderboard of function calls."""
    says = {"java": ("long", '"3L"'), "javascript": ("float", '"3"')}
    for category in tool_use.ROWS:
        kind, value = says.get(category.removeprefix("simple_"), ("integer", "3"))
        parameters = {"type": "dict", "properties": {"n": {"type": kind, "description": "N."}}, "required": ["n"]}
        name, row_id = f"bfcl_{category}", f"{category}_0"
        function = {"name": "f.g", "description": "Does it.", "parameters": parameters}
        ROWS[name] = [{"id": row_id, "question": [[{"role": "user", "content": "Do 3."}]], "function": [function]}]
        ASKED[name] = "Do 3."
        call = f'<tool_call>{{"name": "f_g", "arguments": {{"n": {value}}}}}</tool_call>'
        RIGHT[name], WRONG[name] = call, call.replace("f_g", "f")
        if name in SILENCE:
            RIGHT[name], WRONG[name] = "I can't.", call
        elif tool_use.ROWS[category][1] == tool_use.ANY_CALL:
            WRONG[name] = "I can't."
        else:
            answer = {"id": row_id, "ground_truth": [{"f.g": {"n": [3]}}]}
            BESIDE[name] = {f"possible_answer/BFCL_v4_{category}.json": json.dumps(answer)}


add_function_calls()


def bound(name: str, **given: Any) -> BoundEnv:
    """The environment of a preset under its own name, with what is given beside it."""
    config: EnvConfig = typed(EnvConfig, with_preset(name, {"preset": name, **given}))
    return bind(name, config)


def tasks(name: str, folder: Path, **given: Any) -> list[Task]:
    """The tasks of the rows above, from a file."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    for beside, text in BESIDE.get(name, {}).items():
        (folder / beside).parent.mkdir(exist_ok=True)
        (folder / beside).write_text(text)
    env = bound(name, eval_data={"path": str(path)}, thinking=False, **given)
    return distinct(open_source(env, split="heldout", seed=1), None)


@pytest.mark.parametrize("name", PRESETS)
def test_rows_in_the_published_form_are_put_as_published_and_judged(name: str, tmp_path: Path) -> None:
    task = tasks(name, tmp_path)[0]
    assert task.thinking == OFF
    assert task.messages[-1]["content"] == ASKED[name]
    judged = [score(task, [said]).verdict.parts["correct"] for said in (RIGHT[name], WRONG[name], "")]
    assert judged == [1.0, 0.0, float(name in SILENCE)]


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_set_says_what_a_number_needs(preset: Preset) -> None:
    texts = (preset.title, preset.prompt, preset.rule, preset.samples, preset.source, preset.differs)
    assert all(text.strip() and text.isascii() for text in texts)
    assert preset.rows > 0
    env = bound(preset.name)
    assert (env.config.share, env.config.kind) == (0.0, preset.env)
    assert env.config.eval_data == preset.data


def settings(**envs: Mapping[str, Any]) -> Any:
    return {"name": "it", "stages": ["init", "rl", "eval"], "envs": envs}


def test_a_preset_is_one_line_of_a_configuration_and_is_not_trained_on() -> None:
    config = make_config(settings(math={}, gsm8k={"preset": "gsm8k"}))
    gsm8k = config.envs["gsm8k"]
    assert (gsm8k.share, gsm8k.kind, gsm8k.thinking) == (0.0, "math", True)
    for wrong in (
        settings(gsm8k={"preset": "gsm8k", "share": 1.0}),
        settings(gsm8k={"preset": "gsm8k", "data": {"path": "openai/gsm8k", "config": "main", "split": "test"}}),
        settings(math={}, gsm8k={"preset": "gsm8k"}) | {"rl": {"shares": {"gsm8k": 0.5}}},
    ):
        with pytest.raises(ValueError, match=r"gsm8k.*the preset gsm8k.*for evaluation"):
            make_config(wrong)


def test_a_preset_with_data_of_its_own_is_trained_on_these() -> None:
    train = {"path": "openai/gsm8k", "config": "main", "split": "train"}
    env = make_config(settings(gsm8k={"preset": "gsm8k", "data": train})).envs["gsm8k"]
    assert env.data is not None
    assert env.eval_data is not None
    assert (env.share, env.data.split, env.eval_data.split) == (1.0, "train", "test")


def test_what_is_given_wins_and_a_file_has_no_configuration() -> None:
    given = {"path": "mine.jsonl", "columns": {"question": "q"}}
    env = bound("gsm8k", eval_data=given, options={"system": "Be brief."}, max_turns=2).config
    assert env.eval_data is not None
    assert (env.eval_data.path, env.eval_data.config, env.eval_data.revision) == ("mine.jsonl", None, None)
    assert env.options == {"system": "Be brief.", "prompt": f"{{question}}{BOXED}"}
    assert env.max_turns == 2
    assert bound("gsm8k", eval_data="mine.jsonl").config.eval_data == DataConfig(path="mine.jsonl")
    part = bound("gsm8k", eval_data={"revision": "main"}).config.eval_data
    assert part is not None
    assert (part.path, part.split, part.revision) == ("openai/gsm8k", "test", "main")


def test_unknown_sets_and_other_environments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"envs\.it: unknown preset 'gsm9k'.*did you mean 'gsm8k'"):
        with_preset("it", {"preset": "gsm9k"})
    with pytest.raises(ValueError, match="played by math; leave kind out"):
        with_preset("it", {"preset": "gsm8k", "kind": "code"})


def test_a_configuration_that_was_saved_with_a_preset_is_read_again() -> None:
    once = make_config(settings(math={}, gsm8k={"preset": "gsm8k"})).envs["gsm8k"]
    saved = {name: value for name, value in vars(once).items() if name not in ("split", "eval_data")}
    again = typed(EnvConfig, with_preset("gsm8k", saved | {"eval_data": vars(once.eval_data)}))
    assert again == once
