"""The command `env presets`: the standard sets, and what a number that is quoted of one has to say."""

import argparse
import textwrap

from temper.envs.presets.catalog import PRESETS, preset_of
from temper.envs.presets.preset import Preset

TEXT = "list the standard sets for evaluation, or describe some of them"
EPILOG = """examples:
  temper env presets
  temper env presets gsm8k
  temper eval models/mine --preset gsm8k --greedy

In a configuration a set is an environment, which rl evaluates between its steps but never trains on:

  envs: {math: {data: train.jsonl}, gsm8k: {preset: gsm8k}}

Rows come from the hub at the revision that is named here, or from a file of the same form: envs.NAME.eval_data, or
--preset gsm8k=FILE. Every setting of an environment can be given beside the preset, and wins.
"""
WIDTH = 120


def add_presets_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("presets", help=TEXT, description=TEXT, epilog=EPILOG, formatter_class=raw)
    command.add_argument("names", nargs="*", metavar="NAME", help="those to describe; without any all are listed")
    command.set_defaults(execute=_execute)


def _execute(given: argparse.Namespace) -> int:
    chosen = [preset_of(name) for name in given.names]
    print(*(line for preset in chosen for line in description(preset)) if chosen else table(), sep="\n")
    return 0


def table() -> list[str]:
    """Return the lines of a table of all sets."""
    head = ("preset", "set", "rows", "environment", "usually", "data")
    rows = [(one.name, one.title, str(one.rows), one.env, one.samples, one.data.name) for one in PRESETS.values()]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows)]
    return [*lines, "", "`temper env presets NAME` says prompt, rule and source of one."]


def description(preset: Preset) -> list[str]:
    """Return the lines that describe one set whole."""
    said = {
        "rows": f"{preset.rows}: {_data(preset)}",
        "environment": preset.env,
        "rule": preset.rule,
        "usually": preset.samples,
        "limit": f"{preset.tokens} tokens an answer, thought included, unless --max-tokens says otherwise",
        "source": preset.source,
        "prompt": preset.prompt,
        "differs": preset.differs,
    }
    lines = [line for name, text in said.items() if text for line in _laid_out(name, text)]
    return [f"{preset.name}: {preset.title}", *lines, *_prompts(preset), ""]


def _data(preset: Preset) -> str:
    data = preset.data
    at = f" at {data.revision}" if data.revision else ""
    return f"{data.name}{at}" + (f", where {data.filter}" if data.filter else "")


def _laid_out(name: str, text: str) -> list[str]:
    margin = " " * 14
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=margin)


def _prompts(preset: Preset) -> list[str]:
    """Return the texts in which rows are put to the model, each behind its name; `{question}` is a row's."""
    given = preset.options.get("prompt", {})
    texts = {"prompt": given} if isinstance(given, str) else {f"prompt, {kind}": text for kind, text in given.items()}
    if "system" in preset.options:
        texts = {"system": str(preset.options["system"])} | texts
    return [line for name, text in texts.items() for line in (f"  {name}:", *_quoted(text))]


def _quoted(text: str) -> list[str]:
    return [f"    | {line}".rstrip() for line in text.split("\n")]
