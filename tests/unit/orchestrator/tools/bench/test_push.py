"""The bench of weight pushes: an end that fails ends the measurement."""

from multiprocessing.connection import Connection

import pytest

from temper.orchestrator.tools.bench.push.other_end import OtherEnd
from temper.rollout.weights.manifest import WeightManifest

MANIFEST = WeightManifest.of({"weight": (2, 3)}, dtype="float32", transport="shared_memory", version=1)


def test_an_end_that_does_not_answer_and_one_that_ends_are_errors() -> None:
    end = OtherEnd(Connection.recv)  # takes one push, answers nothing, and ends
    end.give(MANIFEST, "an offer")
    with pytest.raises(RuntimeError, match="ended with status 0"):
        end.taken()
    end.close()
    silent = OtherEnd(Connection.recv, answer_s=0.01)
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        silent.taken()
    silent.close()
