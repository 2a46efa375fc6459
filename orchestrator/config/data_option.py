"""Data as an option of a command names it: a path, or all that a configuration may say of it."""

from temper.envs.data.config import DataConfig
from temper.orchestrator.config.text import parsed, typed

DATA_OPTION = (
    """rows: a file, a folder, a name on the hub, or YAML as in '{path: openai/gsm8k, config: main, split: test}'"""
)


def data_option(text: str) -> DataConfig:
    """Return the data that an option names. Raise `ValueError` where it is neither a path nor such YAML."""
    if not text.lstrip().startswith("{"):
        return DataConfig(path=text)
    data = typed(DataConfig, parsed(text))
    assert isinstance(data, DataConfig)
    return data
