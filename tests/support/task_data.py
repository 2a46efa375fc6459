"""The real task data of the benchmarks, which is not on every machine."""

from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real task data (../shared/data) is not on this machine")
