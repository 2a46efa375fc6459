"""Environment variables of a block."""

import os

import pytest

from temper.envs.core.process import set_variables


def test_variables_have_their_old_values_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPER_SET", "before")
    monkeypatch.delenv("TEMPER_UNSET", raising=False)
    with set_variables({"TEMPER_SET": "in", "TEMPER_UNSET": "in"}):
        assert (os.environ["TEMPER_SET"], os.environ["TEMPER_UNSET"]) == ("in", "in")
    assert os.environ["TEMPER_SET"] == "before"
    assert "TEMPER_UNSET" not in os.environ
