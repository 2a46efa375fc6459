"""A comparison of engine and trainer as the command line asks for it."""

import argparse
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from temper.learner.models.kernels import training_device
from temper.orchestrator.cli.named_model import RUNS, newest_model, run_folder
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.config.text import merged, overridden
from temper.orchestrator.pipeline.config import Config, make_config
from temper.orchestrator.pipeline.eval_config import of_model, of_run, with_envs
from temper.orchestrator.pipeline.profiles.settled import settled
from temper.orchestrator.run.driver import noise_to
from temper.orchestrator.run.folder import write_json
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.tools.debug.parity.prompts import Prompt, env_prompts, file_prompts, own_prompts, require_room
from temper.orchestrator.tools.debug.parity.report import tables, to_json
from temper.orchestrator.tools.debug.parity.search import EngineComparison, GapDiagnosis
from temper.orchestrator.tools.debug.parity.setup import Setup, facts_of
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.weights.weight_files import require_whole

LOG = Path(RUNS) / "parity.log"
WIDTH = 130


def run_parity(given: argparse.Namespace, *, began: float) -> int:
    """Compare, say what was found, and return the exit status. `began` is when the command did, on the monotonic clock.

    Raise `ValueError` or `FileNotFoundError` for a mistake in the input.
    """
    if given.starts < 1:
        raise ValueError(f"--starts {given.starts}: give 1, which changes nothing, or more")
    if not given.deadline > 0:
        raise ValueError(f"--deadline {given.deadline:g}: give seconds above 0, 600 for a small model")
    config = config_of(given)
    assert config.model.source is not None
    model = config.model.source.folder
    require_whole(model)
    setup = Setup(engine=config.rollout.engine, learner=config.learner, sampling=sampling_of(config))
    tokenizer = load_tokenizer(model, config.model.declared())
    prompts = _prompts(given, config, tokenizer)
    require_room(prompts, tokens=given.tokens, longest=setup.engine.max_model_len)
    end, until = tokenizer.eos_token_id, began + given.deadline
    return _told(given, _found(given, setup, model, prompts, end=end, until=until), setup)


def _told(given: argparse.Namespace, found: GapDiagnosis, setup: Setup) -> int:
    """Print what was found, and write it where that is asked; returns the exit status."""
    data = to_json(found, setup, model=given.model)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(given.out, data)
    if given.json:
        json.dump(data, sys.stdout, indent=1)
        print()
    else:
        console = Console(highlight=False)
        console.width = max(console.width, WIDTH)
        console.print(tables(found, model=given.model))
    return 1 if given.at_most is not None and not found.gaps.decoding.mean <= given.at_most else 0


def _found(
    given: argparse.Namespace, setup: Setup, model: Path, prompts: list[Prompt], *, end: int, until: float
) -> GapDiagnosis:
    """Diagnose while what libraries print goes to a file, and what is under way to the screen."""
    with os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8") as screen:

        def tell(text: str) -> None:
            if not given.quiet:
                print(f"parity: {text}", file=screen)

        tell(f"at most {given.starts} engines; what libraries print goes to {LOG}")
        facts = facts_of(model, gpu=training_device() == "cuda")
        progress = Progress("parity", stream=io.StringIO() if given.quiet else screen)
        comparison = EngineComparison(model, facts, prompts, tokens=given.tokens, end=end, tell=tell, progress=progress)
        try:
            with noise_to(LOG):
                return comparison.diagnose(
                    setup, starts=given.starts, bisect=given.starts > 1, deadline_s=until - time.monotonic()
                )
        except RuntimeError as error:  # of vLLM, which says elsewhere why
            raise RuntimeError(f"{error}; {LOG} has what was printed") from error


def config_of(given: argparse.Namespace) -> Config:
    """Return the configuration that the model is run with: that of its run, else what the profile chooses, and the settings
    that are given over it.
    """
    folder = run_folder(given.model, RUNS)
    if folder is not None and not (Path(given.model) / "config.json").is_file():
        base = of_run(folder, newest_model(folder).resolve())
    else:
        source = ModelSource(path=given.model)
        if not (source.on_hub or (source.place / "config.json").is_file()):
            raise FileNotFoundError(
                f"{given.model} is no model directory (it has no config.json), no run in {RUNS} and no name on the hub"
            )
        base = merged(of_model(source), {"envs": {"math": {}}, "stages": ["init", "rl"]})
    if given.env is not None:
        name, _, data = given.env.partition("=")
        base = with_envs(base, {name: data or None}, {})
    found: dict[str, Any] = {"name": "parity-of-a-model"} | base
    return make_config(settled(overridden(found, given.overrides)))


def sampling_of(config: Config) -> Sampling:
    """Return how the first stage that trains on sampled answers samples; plain where there is none."""
    for instance in config.instances:
        settings = config.settings(instance)
        if isinstance(settings, LoopConfig):
            return settings.sampling
    return PLAIN


def _prompts(given: argparse.Namespace, config: Config, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    if given.prompts is not None:
        return file_prompts(given.prompts, tokenizer)
    if given.env is not None:
        env = config.environments[given.env.partition("=")[0]]
        return env_prompts(env, Renderer(tokenizer, config.rollout.thought), seed=config.seed)
    return own_prompts(tokenizer)
