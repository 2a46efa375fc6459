"""What is said at a run's start of limits that its environments and its data do not fit."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from temper.envs.binding import EnvConfig, bind
from temper.envs.data.config import DataConfig
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.finding import Finding, Level
from temper.orchestrator.pipeline.runner import placed
from temper.orchestrator.pipeline.start_checks import (
    Start,
    check_before,
    check_hangs,
    check_prompts,
    check_turns,
    needs_of,
)
from temper.orchestrator.stages.dpo import DpoConfig

DEMO = Path("configs/demo.yaml")


def start(*overrides: str) -> Start:
    config = load_config(DEMO, ["sft.shares.math=0", *overrides])
    return Start(config=config, ahead=config.instances, model=None)


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
    assert placed(own, [dpo]).gpus == 2 + 4  # it pairs the model's own answers
    assert placed(rows, [dpo]).gpus == 4
    assert placed(own, [evaluation, report]).gpus == 2
    assert placed(own, [report]).gpus == 0


def test_a_limit_of_turns_that_cuts_an_environment_short_is_said() -> None:
    lake = "envs.lake={kind: gym, options: {id: FrozenLake-v1}}"
    assert warned(check_turns(start(lake))) == []
    assert warned(check_turns(start(lake, "rollout.limits.turns=64"))) == []
    said = warned(check_turns(start(lake, "envs.tool_use.max_turns=6", "rollout.limits.turns=5")))
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
    with pytest.raises(ValueError, match=r"2 of 3 rows .*total_tokens=250; the longest has 5\d\d .*on_error=skip"):
        limited(250)
    (note,) = limited(250, "envs.math.on_error=skip")
    tokens = int(note.partition("the longest has ")[2].split()[0])
    assert limited(tokens + 1, "envs.math.on_error=skip") == []
    assert len(limited(tokens, "envs.math.on_error=skip")) == 1


def test_a_run_says_so_before_it_writes_anything(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = (json.dumps({"question": f"What is 1+{n}? " * 40, "answer": "#### 2"}) + "\n" for n in range(30))
    path.write_text("".join(rows))
    given = ["rollout.limits.turns=2", f"envs.math.data={path}", "sft.shares.math=0"]
    said = [*given, f"runs_dir={tmp_path / 'runs'}"]
    folder = tmp_path / "runs" / "demo"
    with pytest.raises(ValueError, match="30 of 30 rows leave no token for an answer"):
        check_before(load_config(DEMO, said), load_config(DEMO, said).instances, folder)
    config = load_config(DEMO, [*said, "envs.math.on_error=skip"])
    turns, prompts = check_before(config, config.instances, folder)
    assert "rollout.limits.turns=2" in turns
    assert prompts.endswith("their episodes fail as prompt_too_long")
    assert check_before(config, [one for one in config.instances if one.name == "sft"], folder) == []
    assert not folder.exists()


def test_a_stage_that_gives_up_before_a_hang_is_found_says_so() -> None:
    (note,) = warned(check_hangs(start("supervision.stalled_s=180", "rl.timeout_s=120")))
    assert note.startswith("rl.timeout_s=120 is not above supervision.stalled_s=180")
    assert warned(check_hangs(start())) == []


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
