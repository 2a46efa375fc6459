"""`--help` of every command teaches by examples, which are commands."""

import argparse
import re
import shlex

import pytest

from orchestrator.__main__ import parser

EXAMPLE = re.compile(r"^ +(?:eval \"\$\()?temper ((?:.*\\\n)*.*)", re.MULTILINE)
ROOT = parser()
COMMANDS: dict[str, argparse.ArgumentParser] = next(
    action.choices for action in ROOT._actions if isinstance(action, argparse._SubParsersAction)
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_examples_of_itself_that_its_parser_takes(name: str) -> None:
    shown = "\n".join((COMMANDS[name].description or "", COMMANDS[name].epilog or ""))
    examples = [re.split(r"  +| >|\)\"", text.replace("\\\n", " "))[0] for text in EXAMPLE.findall(shown)]
    own = [words for words in map(shlex.split, examples) if words[0] == name]
    assert own
    for words in own:
        ROOT.parse_known_args(words)
