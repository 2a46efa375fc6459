"""What is said at a run's start of limits that its environments and its data do not fit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.scripted_engine import TOKENIZER

from temper.envs.binding import EnvConfig, bind_all
from temper.envs.data.config import DataConfig
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.limit_checks import hang_notes, prompt_notes, turn_notes
from temper.orchestrator.pipeline.runner import placed
from temper.orchestrator.pipeline.start_checks import check_before
from temper.orchestrator.stages.dpo import DpoConfig
from temper.rollout.episodes.episode import EpisodeLimits
from temper.rollout.episodes.worker import RolloutConfig

DEMO = Path("configs/demo.yaml")
LAKE = EnvConfig(kind="gym", options={"id": "FrozenLake-v1"})


def rollout(total_tokens: int) -> RolloutConfig:
    config = RolloutConfig()
    return replace(
        config,
        limits=replace(config.limits, total_tokens=total_tokens),
        engine=replace(config.engine, max_model_len=total_tokens),
    )


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
    envs = bind_all({"math": EnvConfig(), "lake": LAKE, "tool_use": EnvConfig(max_turns=6)})
    assert turn_notes(envs, EpisodeLimits()) == []
    assert turn_notes(envs, EpisodeLimits(turns=64)) == []
    assert turn_notes(envs, EpisodeLimits(turns=5)) == [
        "rollout.limits.turns=5 cuts the episodes of lake short, which has 64 of its own",
        "rollout.limits.turns=5 cuts the episodes of tool_use short, which has 6 of its own",
    ]
    sharing = bind_all({"math": EnvConfig(tools=["calculator"])})
    assert "has 4 of its own" in turn_notes(sharing, EpisodeLimits(turns=3))[0]


def test_rows_whose_prompt_fills_an_episode_are_counted_and_refused_or_let_pass_by_on_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    questions = ["2+2=?", "What is 1+1? " * 20, "What is 1+2? " * 40]
    path.write_text("\n".join(json.dumps({"question": said, "answer": "#### 4"}) for said in questions))
    whole = bind_all({"math": EnvConfig(data=DataConfig(path=str(path)))})
    assert prompt_notes(whole, rollout(2000), TOKENIZER) == []
    with pytest.raises(
        ValueError, match=r"2 of 3 rows leave no token .*total_tokens=250; the longest has 5\d\d .*skip"
    ):
        prompt_notes(whole, rollout(250), TOKENIZER)
    (note,) = prompt_notes(
        bind_all({"math": EnvConfig(data=DataConfig(path=str(path)), on_error="skip")}), rollout(250), TOKENIZER
    )
    assert note.endswith("their episodes fail as prompt_too_long")


def test_a_prompt_of_one_token_less_than_the_limit_is_short_enough(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "What is 1+1? " * 20, "answer": "#### 2"}))
    envs = bind_all({"math": EnvConfig(data=DataConfig(path=str(path)), on_error="skip")})
    (note,) = prompt_notes(envs, rollout(100), TOKENIZER)
    tokens = int(note.partition("the longest has ")[2].split()[0])
    assert prompt_notes(envs, rollout(tokens + 1), TOKENIZER) == []
    assert len(prompt_notes(envs, rollout(tokens), TOKENIZER)) == 1


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
    assert turns == "rollout.limits.turns=2 cuts the episodes of tool_use short, which has 4 of its own"
    assert prompts.endswith("their episodes fail as prompt_too_long")
    assert check_before(config, [one for one in config.instances if one.name == "sft"], folder) == []
    assert not folder.exists()


def test_a_stage_that_gives_up_before_a_hang_is_found_says_so() -> None:
    short = load_config(DEMO, ["supervision.stalled_s=180", "rl.timeout_s=120"])
    (note,) = hang_notes(short, short.instances)
    assert note.startswith("rl.timeout_s=120 is not above supervision.stalled_s=180")
    usual = load_config(DEMO, [])
    assert hang_notes(usual, usual.instances) == []
