"""Every attack on the sandbox, at levels 3 and 2, observed from outside."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from support.sandbox_attacks.run import ATTACKS, KNOWN, Target

from temper.envs.core.errors import SandboxError

SUCCEEDS_AT_LEVEL_2 = {"finds_files", "sees_processes", "sees_the_host_name"}
QUICK = {
    *SUCCEEDS_AT_LEVEL_2,
    *("fills_the_disk", "changes_a_file", "reads_the_hidden_tests", "reads_the_memory_of_others", "connects_by_tcp"),
    *("uses_io_uring", "makes_forbidden_calls", "kills_its_parent", "nests_namespaces", "bombs_with_forks"),
    *("raises_its_limits", "loops_in_c", "sleeps", "bombs_memory", "bombs_with_threads", "leaves_a_grandchild"),
    *("floods_its_output", "exits_at_once", "is_equal_to_everything", "walks_frames", "forges_a_verdict"),
    *("closes_the_channel", "sends_rubbish", "crashes_in_c"),
}
"""One attack of each kind. The others run in `make test-long`."""


@pytest.fixture(scope="module", params=[3, 2])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    try:
        target = Target(request.param)
    except SandboxError as error:
        if request.param < 3:
            raise
        pytest.skip(f"level 3 can't be had on this machine: {error}")
    with closing(target):
        yield target


def test_no_attack_succeeds_at_level_3_and_few_at_level_2() -> None:
    assert len(ATTACKS) >= 70
    assert ATTACKS.keys() >= QUICK
    assert KNOWN[3] == {}
    assert set(KNOWN[2]) == SUCCEEDS_AT_LEVEL_2


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ATTACKS]
)
def test_an_attack_succeeds_only_where_it_is_known_to(target: Target, name: str) -> None:
    outcome = target.attack(name)
    assert outcome.succeeded == (name in KNOWN[target.level]), outcome.how


@pytest.mark.parametrize("name", ["finds_files", "reads_the_hidden_tests", "sees_the_host_name"])
def test_an_attack_that_succeeds_is_noticed(target: Target, name: str) -> None:
    """The same programs without a sandbox."""
    module = ATTACKS[name]
    assert target.judge(vars(module)[name](target.hint)) is not None


def test_what_an_attack_leaves_behind_is_noticed(target: Target) -> None:
    left = target.folder / "left"
    left.touch()
    assert target.traces() == ["files were changed"]
    left.unlink()
    assert target.traces() == []
