"""The command `completion`: a script by which bash and zsh complete commands, options, files and settings."""

import argparse
import re
from collections.abc import Mapping, Sequence

EPILOG = """examples:
  temper completion >~/.local/share/bash-completion/completions/temper      for good, in bash
  eval "$(temper completion)"                                               in this shell alone, bash
  autoload -U +X compinit bashcompinit && compinit && bashcompinit && eval "$(temper completion)"     the same in zsh
"""
SCRIPT = """# Completes the words of `temper`: made by `temper completion`, to be made again where commands or settings are new.
_temper() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before= key= whole= options= values=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
        return
    fi
    before=${{COMP_WORDS[COMP_CWORD-1]}}
    if [ "$word" = "=" ]; then  # bash takes key=value apart at its sign, zsh does not
        key=$before word=
    elif [[ $word == ?*=* ]]; then
        key=${{word%%=*}} whole=${{word%%=*}}= word=${{word#*=}}
    elif [ "$before" = "=" ]; then
        key=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    if [ -n "$key" ]; then
        case $key in
{values}
        esac
        COMPREPLY=($(compgen -P "$whole" -W "$values" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}} $before" in
        "config --explain")
            COMPREPLY=($(compgen -W "{keys}" -- "$word"))
            return
            ;;
{choices}
    esac
    if [ -n "$values" ]; then
        COMPREPLY=($(compgen -W "$values" -- "$word"))
        return
    fi
    case $word in
        -*)
            case ${{COMP_WORDS[1]}} in
{options}
            esac
            COMPREPLY=($(compgen -W "$options" -- "$word"))
            ;;
        ?*)
            case ${{COMP_WORDS[1]}} in
                {takers}) COMPREPLY=($(compgen -S = -W "{keys}" -- "$word")) ;;
            esac
            [ ${{#COMPREPLY[@]}} -eq 0 ] || compopt -o nospace 2>/dev/null
            ;;
    esac
}}
complete -o default -F _temper temper
"""
CHOICES = re.compile(r"(--[\w-]+)\s+\{([^}]*)\}")
"""An option whose words are known, in the usage of a command."""


def add_completion_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser, behind all others; it sets `execute`, which gives the status."""
    text = "print a script by which bash or zsh completes commands, options, files and settings"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("completion", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.set_defaults(execute=_execute, parsers=commands.choices)


def script(parsers: Mapping[str, argparse.ArgumentParser], keys: Mapping[str, Sequence[str]]) -> str:
    """Return the script for these commands and these keys of settings, each with the values that it may have; () for any."""
    usages = {name: parser.format_usage() for name, parser in parsers.items()}
    words = {name: sorted({word.strip("[]()|,") for word in text.split()}) for name, text in usages.items()}
    options = {name: " ".join(word for word in found if word.startswith("--")) for name, found in words.items()}
    choices = {
        f'"{name} {option}"': known.replace(",", " ")
        for name, text in usages.items()
        for option, known in CHOICES.findall(text)
    }
    values = {key: " ".join(known) for key, known in keys.items() if known}
    return SCRIPT.format(
        commands=" ".join(parsers),
        values=_cases(values, "values", indent=12),
        keys=" ".join(keys),
        choices=_cases(choices, "values", indent=8),
        options=_cases({name: f"{found} --help" for name, found in options.items()}, "options", indent=16),
        takers="|".join(name for name, text in usages.items() if "key=value" in text),
    )


def _cases(found: Mapping[str, str], variable: str, *, indent: int) -> str:
    return "\n".join(f'{"":{indent}}{name}) {variable}="{text}" ;;' for name, text in found.items())


def _execute(given: argparse.Namespace) -> int:
    # Imported here: what knows all settings takes seconds to import.
    from temper.orchestrator.pipeline.reference.settings import words_of_settings

    print(script(given.parsers, words_of_settings()), end="")
    return 0
