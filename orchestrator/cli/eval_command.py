"""The command `eval`: evaluate a run's newest model, any model, or a model behind a server."""

import argparse
import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.orchestrator.cli.arguments import (
    DATA_OPTION,
    RUNS,
    add_command,
    add_screen_options,
    model_source,
    run_folder,
    set_log_level,
)
from temper.orchestrator.cli.env_commands import env_lines
from temper.orchestrator.cli.run_commands import show_dry_run
from temper.orchestrator.config.text import RawConfig, is_file, merge, overridden, read_text, without_plus
from temper.orchestrator.pipeline.config import make_config
from temper.orchestrator.pipeline.eval_config import (
    PATIENT,
    EvalRequest,
    fresh_name,
    label_of,
    of_model,
    of_run,
    preset_answer_limit,
    slug,
    with_evaluation,
)
from temper.orchestrator.pipeline.finding import warnings_of
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.stages.registry import all_stages

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

DESCRIPTION = """evaluate a model on tasks with known answers

WHAT is one of
  a YAML file      the newest model of its run. Results go into the run's folder
  a model          a directory in Hugging Face format, or a name on the hub. Needs --env or --preset
  a run            a folder or name, such as runs/demo: its newest model, in its environments unless --env names others
With --url, WHAT is omitted, or a YAML file with the environments.

--env selects environments, --preset benchmarks. `temper env presets` lists the benchmarks."""
EPILOG = """examples:
  temper eval configs/demo.yaml eval.tasks=256
  temper eval models/mine --preset gsm8k --preset math500 --greedy
  temper eval models/mine --preset gsm8k=gsm8k_test.jsonl --greedy
  temper eval models/mine --env math --data gsm8k_test.jsonl --greedy
  temper eval models/mine --env math --greedy \\
      --data '{path: openai/gsm8k, config: main, split: test, columns: {question: question}}'
  temper eval demo --samples 4 --temperature 0.6 --top-p 0.95
  temper eval models/mine --env math=gsm8k_test.jsonl --env code=humaneval.jsonl --samples 8
  temper eval --url http://127.0.0.1:8000/v1 --env math --data gsm8k_test.jsonl --greedy

Without a YAML file, results go into runs/NAME: eval/LABEL.json with every task, and trajectories. Compare two of them by task
with `temper report --compare A.json B.json`. A data file is used whole and in order. --limit sets the number of generated tasks
(default: 64). Add settings of a configuration to the options, for example rollout.limits.total_tokens=16384 rollout.workers=4
rollout.engine.dtype=bfloat16 envs.math.format=gsm8k.

--url uses OpenAI's chat API. top_k, min_p and thinking=off need server extensions. The API key is read from the environment
variable --key-variable, and is never written.

"""
SAMPLING: dict[str, tuple[type, str, str]] = {
    "temperature": (float, "T", "sampling temperature, 0 is greedy (default: 1)"),
    "top_p": (float, "P", "nucleus sampling: total probability of the candidate tokens (default: 1, all)"),
    "top_k": (int, "N", "number of most likely candidate tokens (default: 0, all)"),
    "min_p": (
        *(float, "P"),
        "minimum probability relative to the most likely token (default: 0)",
    ),
    "max_tokens": (int, "TOKENS", "most tokens of a turn (default: the limit of the run, the model or the server)"),
}
"""Settings of `eval.sampling`: type, metavar, and help with the default."""
SERVER: dict[str, tuple[type, str, str]] = {
    "concurrency": (int, "N", "concurrent requests (default: 16)"),
    "timeout": (float, "SECONDS", "seconds per request (default: 600)"),
    "request_retries": (
        *(int, "N"),
        "retries of a refused or failed request. An episode that still fails is "
        "repeated rollout.retries times (default: 4)",
    ),
}
"""Settings of `ChatServer`: type, metavar, and help with the default."""
KEY_VARIABLE = "OPENAI_API_KEY"
OF_SERVERS = ("model", *SERVER, "key_variable")
"""Options that only an evaluation of a server reads."""
ASKED_OF_SERVERS = (
    *("envs", "eval", "seed", "sandbox", "name", "runs_dir"),
    *("rollout.limits.turns", "rollout.limits.timeout_s", "rollout.retries", "rollout.programs"),
)
"""Settings for servers. Other settings are for local engines."""
SETTING = re.compile(r"\+{0,2}[\w-]+(\.[\w*-]+)*=")
"""How an argument begins that is a setting."""


def add_eval_command(commands: "Commands") -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "eval",
        _execute,
        all_stages()["eval"].help,
        epilog=lambda: EPILOG + env_lines(),
        description=DESCRIPTION,
    )
    command.add_argument("what", nargs="?", metavar="WHAT", help="see above")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="settings, as in a configuration")
    tasks = command.add_argument_group("tasks")
    tasks.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="ENV[=DATA]",
        help="an environment of the list below, with rows if it generates none. Repeatable",
    )
    tasks.add_argument(
        "--preset",
        action="append",
        default=[],
        metavar="NAME[=DATA]",
        help="a benchmark, with local rows instead of the hub's. Repeatable",
    )
    tasks.add_argument("--data", "--eval-data", metavar="DATA", help=f"data of a single environment: {DATA_OPTION}")
    tasks.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="maximum tasks per environment (default: all rows, or 64 generated tasks)",
    )
    answers = command.add_argument_group("answers")
    answers.add_argument("--samples", type=int, metavar="K", help="answers per task (default: 4, or 1 if greedy)")
    answers.add_argument("--greedy", action="store_true", help="as --temperature 0")
    _add(answers, SAMPLING)
    answers.add_argument(
        "--stop", action="append", metavar="TEXT", help=r"stop string, with escapes such as \n. Repeatable"
    )
    answers.add_argument(
        "--seed", type=int, metavar="N", help="seed of sampling and generated tasks (default: the run's, or 1)"
    )
    results = command.add_argument_group("results")
    results.add_argument("--name", help="name of the result folder (default: model and time)")
    results.add_argument("--runs-dir", metavar="DIR", help="parent folder of results and runs (default: runs)")
    results.add_argument(
        "--json",
        action="store_true",
        help="print the results with every task as JSON, also of --dry-run",
    )
    server = command.add_argument_group("a model behind a server")
    server.add_argument("--url", help="up to and with the version, such as http://127.0.0.1:8000/v1")
    server.add_argument("--model", metavar="NAME", help="the server's name of the model, if it has several")
    _add(server, SERVER)
    server.add_argument(
        "--key-variable",
        metavar="NAME",
        help=f"environment variable with the server's key (default: {KEY_VARIABLE})",
    )
    add_screen_options(command)


def _add(group: Any, options: dict[str, tuple[type, str, str]]) -> None:
    for name, (kind, shown, explained) in options.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=shown, help=explained)


def settings_of_options(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings `eval` and `seed` of the options, as a configuration. Raise `ValueError` for contradictions."""
    sampling = {name: value for name in SAMPLING if (value := vars(given)[name]) is not None}
    if given.greedy and sampling.setdefault("temperature", 0.0) != 0:
        raise ValueError(f"--greedy excludes --temperature {given.temperature}")
    if given.stop is not None:
        sampling["stop"] = [read_escapes(text) for text in given.stop]
    greedy = sampling.get("temperature") == 0
    samples = 1 if greedy and given.samples is None else given.samples
    counts = {"tasks": given.limit, "samples": samples}
    evaluation = {name: value for name, value in counts.items() if value is not None}
    evaluation |= {"sampling": sampling} if sampling else {}
    return ({"eval": evaluation} if evaluation else {}) | ({} if given.seed is None else {"seed": given.seed})


def read_escapes(text: str) -> str:
    r"""Return a text with its escapes decoded: `\n`, `\t`, `\xNN`. Raise `ValueError` for an invalid escape."""
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise ValueError(f"--stop {text!r} has an escape that can't be read: {error.reason}") from error


def environments(given: argparse.Namespace) -> dict[str, str | None]:
    """Return the environments that are named, with their data. Raise `ValueError` for `--data` without its environment."""
    found = _named("env", given.env)
    if given.data is not None:
        if len(found) != 1 or None not in found.values():
            raise ValueError(
                f"--data {given.data!r} needs exactly one --env without data. Use --env ENV=DATA for several"
            )
        found = dict.fromkeys(found, given.data)
    return found


def _named(option: str, texts: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for text in texts:
        name, _, data = text.partition("=")
        if not name or name in found:
            raise ValueError(f"--{option} {text!r}: use each name once, as NAME or NAME=DATA")
        found[name] = data or None
    return found


def is_override(text: str) -> bool:
    return SETTING.match(text) is not None or is_file(text)


def require_read(given: argparse.Namespace) -> None:
    """Raise `ValueError` for an option or setting that this kind of evaluation does not use."""
    if given.url is None:
        if unread := [f"--{name.replace('_', '-')}" for name in OF_SERVERS if vars(given)[name] is not None]:
            raise ValueError(f"{', '.join(unread)} needs --url")
        if given.what is not None and is_file(given.what) and given.runs_dir is not None:
            raise ValueError(f"--runs-dir conflicts with {given.what}. Set runs_dir=DIR instead")
        return
    if given.dry_run:
        raise ValueError("--dry-run and --url exclude each other")
    asked = tuple(f"{name}{end}" for name in ASKED_OF_SERVERS for end in ("=", "."))
    if unread := [text for text in given.overrides if not text.startswith(asked)]:
        raise ValueError(
            f"{', '.join(unread)} with --url: a request to a server has only {', '.join(ASKED_OF_SERVERS)}; "
            f"set the length of a turn by --max-tokens, and all else on the server"
        )


def _execute(given: argparse.Namespace) -> int:
    """Evaluate, show the results, and return the exit status. Raise `ValueError` or `FileNotFoundError` for wrong input."""
    if given.what is not None and SETTING.match(given.what):  # WHAT is optional with a server
        given.overrides, given.what = [without_plus(given.what), *given.overrides], None
    if given.what is None and given.url is None:
        raise ValueError("name a YAML file, a model, a run, or a server with --url")
    require_read(given)
    set_log_level(given.log_level)
    asked = _asked(given)
    file = Path(given.what) if given.what is not None and is_file(given.what) else None
    if given.url is not None:
        if given.what is not None and file is None:
            raise ValueError(f"{given.what} with --url must be a YAML file; name the model with --model")
        return _of_server(given, PATIENT if file is None else read_text(file, []), asked)
    if file is None:
        return _through_pipeline(_of_model_or_run(given, asked), given)
    if asked.envs or asked.presets:
        raise ValueError(
            f"--{'env' if asked.envs else 'preset'} with {file}: a run is evaluated in its own environments; name the run "
            f"itself for others, or its model"
        )
    named = {} if given.name is None else {"name": given.name}
    found = merge(read_text(file, []), asked.overrides) | named
    return _through_pipeline(overridden(found, given.overrides), given, only="eval")


def _asked(given: argparse.Namespace) -> EvalRequest:
    return EvalRequest(
        overrides=settings_of_options(given), envs=environments(given), presets=_named("preset", given.preset)
    )


def _of_model_or_run(given: argparse.Namespace, asked: EvalRequest) -> RawConfig:
    runs_dir = given.runs_dir or RUNS
    if (folder := run_folder(given.what, runs_dir)) is not None:
        base, label = of_run(folder, RunDir(folder).newest_model().resolve()), label_of(folder)
    else:
        kinds = f"no YAML file, no model directory (it has no config.json), no run in {runs_dir}"
        source = model_source(given.what, kinds=kinds)
        base, label = of_model(source), slug(given.what if source.on_hub else source.folder.name)
        longest, own = base["rollout"]["limits"]["turn_tokens"], overridden({}, given.overrides)
        base = merge(base, preset_answer_limit(asked, given=own, longest=longest))
    if overridden({}, given.overrides).get("model", {}).get("ema"):
        label += "-ema"
    found = with_evaluation(base, asked, label=label)
    found |= {"name": given.name or fresh_name(label), "runs_dir": runs_dir}
    return overridden(found, given.overrides)


def _through_pipeline(wanted: RawConfig, given: argparse.Namespace, *, only: str | None = None) -> int:
    """Run the stages of a configuration and print the newest result, or print the plan."""
    if given.dry_run:
        from temper.orchestrator.pipeline.preview import preview_of

        return show_dry_run(preview_of(wanted, only=only), as_json=given.json)
    from temper.orchestrator.pipeline.profiles.resolve import resolve_profile
    from temper.orchestrator.pipeline.runner import run_pipeline
    from temper.orchestrator.tools.preflight.doctor.checks import start_notes

    config = make_config(resolve_profile(wanted))
    notes = start_notes(config)
    status = asyncio.run(run_pipeline(config, only=only, quiet=given.quiet or given.json, notes=notes))
    results = RunDir(Path(config.runs_dir) / config.name).evals.glob("*.json")
    if status == 0 and (newest := max(results, key=lambda path: path.stat().st_mtime, default=None)):
        show(newest, as_json=given.json)
    return status


def _of_server(given: argparse.Namespace, base: RawConfig, asked: EvalRequest) -> int:
    """Evaluate a model behind a server with the environments and settings of the configuration `base`."""
    from temper.rollout.remote.client import ChatServer

    label = slug(given.model or given.url.split("://")[-1].split("/")[0])
    limit = preset_answer_limit(asked, given=overridden(base, given.overrides))
    places = {} if given.runs_dir is None else {"runs_dir": given.runs_dir}
    found = with_evaluation(merge(base, limit), asked, label=label) | {"name": given.name or fresh_name(label)} | places
    options = {"concurrency": given.concurrency, "timeout_s": given.timeout, "retries": given.request_retries}
    server = ChatServer(
        url=given.url,
        key=os.environ.get(given.key_variable or KEY_VARIABLE, ""),
        **{name: value for name, value in options.items() if value is not None},
    )
    config = make_config(overridden(found, given.overrides))
    from temper.orchestrator.evaluation.remote import evaluate_server  # slow, so after the checks of the settings
    from temper.orchestrator.pipeline.settings_checks import check_samples

    for note in warnings_of(check_samples(config, config.instances[-1:])):
        print(note, file=sys.stderr)
    settings = config.settings(config.instances[-1])
    answers = evaluate_server(config, settings, server, model=given.model, label=label, quiet=given.quiet or given.json)
    show(asyncio.run(answers), as_json=given.json)
    return 0


def show(path: Path, *, as_json: bool = False) -> None:
    from temper.orchestrator.evaluation.scores import result_lines

    text = path.read_text(encoding="utf-8")
    print(*([text] if as_json else [*result_lines(json.loads(text)), str(path)]), sep="\n")
