"""A comparison of engine and trainer as the command line asks for it."""

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from temper.orchestrator.cli.arguments import RUNS, model_source, run_folder
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.text import merged, overridden
from temper.orchestrator.pipeline.config import Config, make_config
from temper.orchestrator.pipeline.eval_config import EvalRequest, of_model, of_run, with_envs
from temper.orchestrator.pipeline.profiles.resolve import resolve_profile
from temper.orchestrator.run.driver import noise_to
from temper.orchestrator.run.folder import RunDir, write_json
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.tools.debug.parity.answers import Prompt, Setup
from temper.orchestrator.tools.debug.parity.comparison import Comparison, compare
from temper.orchestrator.tools.debug.parity.prompts import builtin_prompts, env_prompts, file_prompts, require_context
from temper.orchestrator.tools.debug.parity.report import tables, to_json
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.weights.weight_files import require_complete

LOG = Path(RUNS) / "parity.log"
WIDTH = 130


def run_parity(given: argparse.Namespace) -> int:
    """Compare, print the tables, and return the exit status. Raise `ValueError` or `FileNotFoundError` for wrong input."""
    config = config_of(given)
    assert config.model.source is not None
    model = config.model.source.folder
    require_complete(model)
    setup = Setup(engine=config.rollout.engine, learner=config.learner, sampling=sampling_of(config))
    tokenizer = load_tokenizer(model, config.model.declared())
    prompts = _prompts(given, config, tokenizer)
    require_context(prompts, tokens=given.tokens, longest=setup.engine.max_model_len)
    return _shown(given, _compared(given, setup, model, prompts, end=tokenizer.eos_token_id), setup)


def _shown(given: argparse.Namespace, found: Comparison, setup: Setup) -> int:
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
    return 1 if given.at_most is not None and not found.configured.decoding.mean <= given.at_most else 0


def _compared(given: argparse.Namespace, setup: Setup, model: Path, prompts: list[Prompt], *, end: int) -> Comparison:
    with os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8") as screen:

        def notify(text: str) -> None:
            if not given.quiet:
                print(f"parity: {text}", file=screen)

        notify(f"the output of libraries is in {LOG}")
        progress = Progress("parity", stream=io.StringIO() if given.quiet else screen)
        try:
            with noise_to(LOG):
                return compare(model, setup, prompts, tokens=given.tokens, end=end, notify=notify, progress=progress)
        except RuntimeError as error:  # from vLLM, which logs the reason
            raise RuntimeError(f"{error}; see {LOG} for the output") from error


def config_of(given: argparse.Namespace) -> Config:
    """Return the configuration of the model's run, or else of the profile, with overrides."""
    if (folder := run_folder(given.model, RUNS)) is not None:
        base = of_run(folder, RunDir(folder).newest_model().resolve())
    else:
        kinds = f"no model directory (it has no config.json), no run in {RUNS}"
        source = model_source(given.model, kinds=kinds)
        base = merged(of_model(source), {"envs": {"math": {}}, "stages": ["init", "rl"]})
    if given.env is not None:
        name, _, data = given.env.partition("=")
        base = with_envs(base, EvalRequest(overrides={}, envs={name: data or None}, presets={}))
    found: dict[str, Any] = {"name": "parity-of-a-model"} | base
    return make_config(resolve_profile(overridden(found, given.overrides)))


def sampling_of(config: Config) -> Sampling:
    """Return the sampling of the first stage that trains on sampled answers, or the default."""
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
        return env_prompts(env, Renderer(tokenizer, config.rollout.thinking), seed=config.seed)
    return builtin_prompts(tokenizer)
