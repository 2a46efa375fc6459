"""`--help` of every command teaches by examples, which are commands."""

import argparse
import re
import shlex

import pytest

from temper.orchestrator.__main__ import main, parser

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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "the following arguments are required: FILE"),
        (["simulate", "--json"], "the following arguments are required: FILE"),
        (["run", "configs/demo.yaml", "rl.steps=3", "--drry-run"], "unrecognized arguments: --drry-run"),
        (["run", "configs/demo.yaml", "--quiet", "rl..steps=3", "seed=2"], "unrecognized arguments: rl..steps=3"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_said_without_what_is_right(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert capsys.readouterr().err.splitlines()[-1] == f"temper {arguments[0]}: error: {said}"
