"""The environments as the help of a command lists them: which formats of rows each reads, and whether it needs any."""

from temper.envs.catalog import ENVIRONMENTS
from temper.envs.core.definition import EnvDefinition


def env_lines() -> str:
    """Return a table of the environments."""
    width = max(map(len, ENVIRONMENTS))
    rows = [f"  {name:<{width}}  {_rows(env)}" for name, env in ENVIRONMENTS.items()]
    head = "environments, with the formats of rows that each reads, found out where none is named:"
    return "\n".join([head, *rows, "docs/environments.md says what each compares, docs/data.md how rows are named."])


def _rows(env: EnvDefinition) -> str:
    formats = ", ".join(one.name for one in env.formats) or (
        "those of the folder of its data" if env.beside else "the options say which" if env.configure else "none"
    )
    return f"{formats}; generates tasks too" if env.generate is not None else formats
