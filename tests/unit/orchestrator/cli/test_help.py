"""`--help` of every command shows valid example commands."""

import argparse
import re
import shlex

import pytest

from temper.orchestrator.__main__ import GROUPS, TWO_WORDS, join_command, main, parser

EXAMPLE = re.compile(r"^ +temper ((?:.*\\\n)*.*)", re.MULTILINE)
ROOT = parser()


def below(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [one.choices for one in command._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


COMMANDS = {
    f"{name} {inner}" if inner else name: leaf
    for name, command in below(ROOT).items()
    for inner, leaf in (below(command) or {"": command}).items()
}


def test_help_lists_at_most_16_commands_each_in_a_group() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert len(listed) <= 16
    assert sorted(listed) == sorted(below(ROOT).keys() - set(TWO_WORDS))


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_a_command_parse(name: str) -> None:
    shown = COMMANDS[name].format_help()
    examples = [re.split(r"  +| >", text.replace("\\\n", " "))[0] for text in EXAMPLE.findall(shown)]
    own = [words for words in map(shlex.split, examples) if " ".join(words).startswith(name)]
    assert own
    for words in own:
        ROOT.parse_known_args(join_command(words))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run"], "FILE"),
        (["doctor", "--plan", "--json"], "FILE"),
        (["run", "configs/demo.yaml", "rl.steps=3", "--drry-run"], "--drry-run"),
        (["run", "configs/demo.yaml", "--quiet", "rl..steps=3", "seed=2"], "rl..steps=3"),
    ],
)
def test_a_wrong_command_line_is_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert f": {named}" in capsys.readouterr().err.splitlines()[-1]
