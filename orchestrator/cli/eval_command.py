"""The command `eval`: a run's newest model as its configuration says, or any model, also one behind a server."""

import argparse
import re
from typing import TYPE_CHECKING, Any

from temper.orchestrator.cli.arguments import DATA_OPTION, add_command, add_screen_options, set_log_level
from temper.orchestrator.cli.env_commands import env_lines
from temper.orchestrator.config.text import is_file, without_plus
from temper.orchestrator.stages.registry import HELP

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

DESCRIPTION = """evaluate a model on tasks with known answers

WHAT is one of
  a YAML file      the newest model of the run that it describes; the results go into the run's folder
  a model          a directory in Hugging Face format, or a name on the hub; needs --env
  a run            its folder or its name, such as runs/demo: its newest model, in its environments unless --env names others
With --url it is left out, or a YAML file whose environments are asked.

What is asked is environments, with --env, and standard sets, with --preset: `temper env presets` lists them."""
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

Without a YAML file the results lie in a folder of their own, runs/NAME: eval/LABEL.json with every task, and trajectories.
`temper report --compare A.json B.json` compares two of them task by task. A data file is used whole, each row once, in
order; generated tasks are 64 unless --limit says otherwise. Settings of a configuration may be given beside the options, for
example rollout.limits.total_tokens=16384 rollout.workers=4 rollout.engine.dtype=bfloat16 envs.math.format=gsm8k.

With --url requests are those of OpenAI's chat API: top_k, min_p, and environments without thinking, send what not every
server knows. The key that the server asks for is read from the environment variable --key-variable, and is written nowhere.

"""
SAMPLING: dict[str, tuple[type, str, str]] = {
    "temperature": (float, "T", "what the logits are divided by, 0 is greedy (default: 1)"),
    "top_p": (float, "P", "probability that the tokens which may be drawn have together (default: 1, all)"),
    "top_k": (int, "N", "how many of the likeliest tokens may be drawn (default: 0, all)"),
    "min_p": (
        *(float, "P"),
        "least probability of a token that may be drawn, as a share of the likeliest one's (default: 0)",
    ),
    "max_tokens": (int, "TOKENS", "most tokens of a turn (default: the limit of the run, the model or the server)"),
}
"""Settings of `eval.sampling`: type, what stands for the value, and help with the default."""
SERVER: dict[str, tuple[type, str, str]] = {
    "concurrency": (int, "N", "requests under way at once (default: 16)"),
    "timeout": (float, "SECONDS", "deadline of one request (default: 600)"),
    "request_retries": (
        *(int, "N"),
        "repetitions of a request that was turned away or met a fault of the server; an episode that fails all the same is "
        "played again rollout.retries times (default: 4)",
    ),
}
"""Those of `ChatServer`, likewise."""
KEY_VARIABLE = "OPENAI_API_KEY"
OF_SERVERS = ("model", *SERVER, "key_variable")
"""Options that only an evaluation of a server reads."""
ASKED_OF_SERVERS = (
    *("envs", "eval", "seed", "sandbox", "name", "runs_dir"),
    *("rollout.limits.turns", "rollout.limits.timeout_s", "rollout.retries", "rollout.programs"),
)
"""Settings that it reads; the others are of engines of our own."""
SETTING = re.compile(r"\+{0,2}[\w-]+(\.[\w*-]+)*=")
"""How an argument begins that is a setting."""


def add_eval_command(commands: "Commands") -> None:
    """Add the command to the parser."""
    command = add_command(
        commands, "eval", _execute, HELP["eval"], epilog=lambda: EPILOG + env_lines(), description=DESCRIPTION
    )
    command.add_argument("what", nargs="?", metavar="WHAT", help="see above")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="settings, as in a configuration")
    tasks = command.add_argument_group("tasks")
    tasks.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="ENV[=DATA]",
        help="an environment of the list below, with its rows where it generates none; once for each",
    )
    tasks.add_argument(
        "--preset",
        action="append",
        default=[],
        metavar="NAME[=DATA]",
        help="a standard set, with its rows where they are not to come from the hub; once for each",
    )
    tasks.add_argument("--data", "--eval-data", metavar="DATA", help=f"of the one environment: {DATA_OPTION}")
    tasks.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="most tasks of each environment (default: all rows, or 64 generated ones)",
    )
    answers = command.add_argument_group("answers")
    answers.add_argument("--samples", type=int, metavar="K", help="answers to each task (default: 4, 1 where greedy)")
    answers.add_argument("--greedy", action="store_true", help="as --temperature 0")
    _add(answers, SAMPLING)
    answers.add_argument(
        "--stop", action="append", metavar="TEXT", help=r"ends a turn; \n and the like are read; may be given again"
    )
    answers.add_argument(
        "--seed", type=int, metavar="N", help="of sampling and of generated tasks (default: that of the run, or 1)"
    )
    results = command.add_argument_group("results")
    results.add_argument("--name", help="of the folder (default: made of the model's name and the time)")
    results.add_argument("--runs-dir", metavar="DIR", help="where it, and runs that are named, lie (default: runs)")
    results.add_argument(
        "--json",
        action="store_true",
        help="print the result's file, every task in it, in place of a short table; what --dry-run says too",
    )
    server = command.add_argument_group("a model behind a server")
    server.add_argument("--url", help="up to and with the version, such as http://127.0.0.1:8000/v1")
    server.add_argument("--model", metavar="NAME", help="what the server calls it, where it has several")
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


def told(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings `eval` and `seed` of the options, as a configuration. Raise `ValueError` for contradictions."""
    sampling = {name: value for name in SAMPLING if (value := vars(given)[name]) is not None}
    if given.greedy and sampling.setdefault("temperature", 0.0) != 0:
        raise ValueError(f"--greedy with --temperature {given.temperature}: give one of them")
    if given.stop is not None:
        sampling["stop"] = [read_escapes(text) for text in given.stop]
    greedy = sampling.get("temperature") == 0
    samples = 1 if greedy and given.samples is None else given.samples
    counts = {"tasks": given.limit, "samples": samples}
    evaluation = {name: value for name, value in counts.items() if value is not None}
    evaluation |= {"sampling": sampling} if sampling else {}
    return ({"eval": evaluation} if evaluation else {}) | ({} if given.seed is None else {"seed": given.seed})


def read_escapes(text: str) -> str:
    r"""Return a text with its escapes read: `\n`, `\t`, `\xNN` and the like. Raise `ValueError` for a broken one."""
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise ValueError(f"--stop {text!r} has an escape that can't be read: {error.reason}") from error


def presets(given: argparse.Namespace) -> dict[str, str | None]:
    """Return the standard sets that are named, with their data. Raise `ValueError` for one that is named twice."""
    return _named("preset", given.preset)


def environments(given: argparse.Namespace) -> dict[str, str | None]:
    """Return the environments that are named, with their data. Raise `ValueError` for `--data` without its environment."""
    found = _named("env", given.env)
    if given.data is not None:
        if len(found) != 1 or None not in found.values():
            raise ValueError(
                f"--data {given.data!r} is for one --env that names no data; of several, give each as --env ENV=DATA"
            )
        found = dict.fromkeys(found, given.data)
    return found


def _named(option: str, texts: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for text in texts:
        name, _, data = text.partition("=")
        if not name or name in found:
            raise ValueError(f"--{option} {text!r}: give each once, as NAME or NAME=DATA")
        found[name] = data or None
    return found


def is_override(text: str) -> bool:
    return SETTING.match(text) is not None or is_file(text)


def require_read(given: argparse.Namespace) -> None:
    """Raise `ValueError` for an option or a setting that this way of evaluating does not read."""
    if given.url is None:
        if unread := [f"--{name.replace('_', '-')}" for name in OF_SERVERS if vars(given)[name] is not None]:
            raise ValueError(f"{', '.join(unread)} without --url: only a model behind a server is asked so")
        if given.what is not None and is_file(given.what) and given.runs_dir is not None:
            raise ValueError(
                f"--runs-dir beside {given.what}, which says where its run lies; give runs_dir=DIR for another"
            )
        return
    if given.dry_run:
        raise ValueError(
            "--dry-run beside --url: nothing is started for a server, and it alone knows what it would answer; leave one out"
        )
    if unread := [text for text in given.overrides if not _is_asked_of_servers(text.partition("=")[0])]:
        raise ValueError(
            f"{', '.join(unread)} beside --url: a server is asked with the settings {', '.join(ASKED_OF_SERVERS)} alone; "
            f"the length of a turn is --max-tokens, and all else is the server's own affair"
        )


def _is_asked_of_servers(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in ASKED_OF_SERVERS)


def _execute(given: argparse.Namespace) -> int:
    if given.what is not None and SETTING.match(given.what):  # a server needs no WHAT
        given.overrides, given.what = [without_plus(given.what), *given.overrides], None
    if given.what is None and given.url is None:
        raise ValueError("name what is to be evaluated: a YAML file, a model or a run; or a server with --url")
    require_read(given)
    set_log_level(given.log_level)
    from temper.orchestrator.cli.run_eval import run_eval

    return run_eval(given)
