"""Assertions on the names in user errors, so that tests do not depend on wording."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from temper.envs.core.bounds import SettingError
from temper.envs.core.errors import FailureKind
from temper.envs.transcript import TranscriptScore
from temper.rollout.trajectory import Trajectory


@contextmanager
def refuses(key: str, *named: object, error: type[Exception] = ValueError) -> Iterator[None]:
    """Expect a user error that names a whole key, or `key=value`, and all of `named`."""
    with pytest.raises(error) as raised:
        yield
    text = str(raised.value)
    assert re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", text), (key, text)
    for one in named:
        assert str(one) in text, (one, text)
    if isinstance(raised.value, SettingError):
        assert raised.value.key == key.partition("=")[0], (key, raised.value.key)


def failure_kind(failed: TranscriptScore | Trajectory) -> FailureKind:
    """Return the kind of the failure that ended an episode. It must have one."""
    assert failed.failure is not None
    return failed.failure.kind
