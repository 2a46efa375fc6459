from pathlib import Path

import pytest
from support.tiny_shop import write_shop


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return write_shop(tmp_path)
