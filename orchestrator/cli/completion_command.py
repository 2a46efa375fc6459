"""The command `completion`: a script by which bash and zsh complete commands, options, files and settings."""

import argparse

EPILOG = """examples:
  temper completion >~/.local/share/bash-completion/completions/temper      for good, in bash
  eval "$(temper completion)"                                               in this shell alone, bash
  autoload -U +X compinit bashcompinit && compinit && bashcompinit && eval "$(temper completion)"     the same in zsh
"""
SCRIPT = """# Completes the words of `temper`: made by `temper completion`, to be made again where commands or settings are new.
_temper() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} options=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
        return
    fi
    case $word in
        -*)
            case ${{COMP_WORDS[1]}} in
{cases}
            esac
            COMPREPLY=($(compgen -W "$options" -- "$word"))
            ;;
        ?*)
            case ${{COMP_WORDS[1]}} in
                {takers}) COMPREPLY=($(compgen -W "{keys}" -- "$word")) ;;
            esac
            [ ${{#COMPREPLY[@]}} -eq 0 ] || compopt -o nospace 2>/dev/null
            ;;
    esac
}}
complete -o default -F _temper temper
"""


def add_completion_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser, behind all others; it sets `execute`, which gives the status."""
    text = "print a script by which bash or zsh completes commands, options, files and settings"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("completion", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.set_defaults(execute=_execute, parsers=commands.choices)


def script(parsers: dict[str, argparse.ArgumentParser], keys: list[str]) -> str:
    """Return the script for these commands and these keys of settings."""
    options = {name: parser.format_usage() for name, parser in parsers.items()}
    words = {name: sorted({word.strip("[]()|,") for word in text.split()}) for name, text in options.items()}
    flags = {name: " ".join(word for word in found if word.startswith("--")) for name, found in words.items()}
    takers = [name for name, text in options.items() if "key=value" in text]
    return SCRIPT.format(
        commands=" ".join(parsers),
        cases="\n".join(f'                {name}) options="{found} --help" ;;' for name, found in flags.items()),
        takers="|".join(takers),
        keys=" ".join(f"{key}=" for key in keys),
    )


def _execute(given: argparse.Namespace) -> int:
    # Imported here: what knows all settings takes seconds to import.
    from orchestrator.pipeline.config import KINDS

    print(script(given.parsers, sorted(key for key in KINDS if "*" not in key)), end="")
    return 0
