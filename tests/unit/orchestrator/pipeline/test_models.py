"""A model that can't think as configured is refused before anything starts."""

from pathlib import Path

import pytest
from support import tiny_models

from temper.envs.core.thinking_mode import ThinkingMix
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.data.sft import SftDataConfig
from temper.orchestrator.pipeline.config import Config, load_config, usual_sections
from temper.orchestrator.pipeline.start_checks import check_model
from temper.orchestrator.stages.sft import SftConfig
from temper.rollout.budget.config import ThoughtConfig
from temper.rollout.episodes.worker import RolloutConfig

ENVS = load_config(Path("configs/demo.yaml"), []).envs
BUDGETS = usual_sections() | {"rl": RlConfig(thinking=ThinkingMix(budget=0.5, budgets=[16]))}


def saved_template(directory: Path, template: str) -> Path:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory


def test_a_template_that_ignores_the_mode_is_refused_where_a_stage_switches_thinking_off(tmp_path: Path) -> None:
    template = str(byte_tokenizer().chat_template)
    model = saved_template(tiny_models.nemotron_h(tmp_path / "m"), template.replace("if thinking else", "if true else"))
    bare = SftConfig(thoughts=SftDataConfig(thinking=ThinkingMix(no_thought=0.1)))
    with pytest.raises(ValueError, match="can't switch thinking off"):
        check_model(
            model, Config(name="x", envs=ENVS, stages=["init", "sft"], sections=usual_sections() | {"sft": bare})
        )
    check_model(
        model, Config(name="x", envs=ENVS, stages=["init", "sft"])
    )  # by default each sample has its thought then
    check_model(model, Config(name="x", envs=ENVS, stages=["init", "rl"], sections=BUDGETS))


def test_a_template_that_does_not_show_the_closing_has_the_usual_one_or_that_of_the_configuration(
    tmp_path: Path,
) -> None:
    plain = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}{{ '<think>' if add_generation_prompt }}"
    model = saved_template(tiny_models.nemotron_h(tmp_path / "m"), plain)
    check_model(model, Config(name="x", envs=ENVS, stages=["init", "rl"], sections=BUDGETS))
    given = RolloutConfig(thought=ThoughtConfig(closing="\n</think>\n\n"))
    check_model(model, Config(name="x", envs=ENVS, stages=["init", "rl"], sections=BUDGETS, rollout=given))
    check_model(model, Config(name="x", envs=ENVS, stages=["init", "rl"]))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.thinking.budget=0.5", "give rl.thinking.budgets"),
        ("rl.thinking={budget: 0.5, budgets: [-4]}", "budget of -4 tokens"),
        ("rl.thinking={budget: 0.5, budgets: [450]}", "rollout.limits.total_tokens=512"),
        ("rollout.thought.grace=-1", "grace=-1"),
        ("self_sft.thinking.no_thought=0.1", "must be 0"),
        ("sft.thoughts.low_effort_keep=0", "low_effort_keep=0"),
    ],
)
def test_impossible_budgets_are_refused_when_the_configuration_is_read(override: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_config(Path("configs/demo.yaml"), [override])
