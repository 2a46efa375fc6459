"""Calls over several user turns, on small simulators in the layout of the published ones."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.bound import say
from support.refusals import refuses
from support.tiny_simulators import ASKED, SOURCE, dialogue, write_simulators

from temper.envs.all_tasks import read_tasks
from temper.envs.binding import bind
from temper.envs.catalog import configure_env
from temper.envs.config import EnvConfig
from temper.envs.core.errors import EnvironmentFault, FailureKind
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF
from temper.envs.core.turn_text import parse_turn
from temper.envs.data.config import DataConfig
from temper.envs.env_episode import EnvEpisode
from temper.envs.multi_turn_calls.env import MAX_STEPS, fault_of, negatives, reference
from temper.envs.multi_turn_calls.rows import call_in
from temper.envs.multi_turn_calls.simulators import WALL_S, Scene, Simulators
from temper.envs.source import open_source
from temper.envs.transcript import TranscriptScore, score_turns
from temper.rewards.score import Outcome

DONE = "Done."
DOCS = ("mkdir", {"name": "docs"})
LS: tuple[str, dict[str, Any]] = ("ls", {})
RELEASED = ["Make the folder docs.", "List them.", "", "Thanks, once more."]


def written(folder: Path, category: str = "multi_turn_base", **row: Any) -> Path:
    """Write a row with its answer and return its file."""
    made, answer = dialogue(category, **row)
    file = folder / f"BFCL_v4_{category}.json"
    file.write_text(json.dumps(made) + "\n")
    (folder / "possible_answer").mkdir(exist_ok=True)
    (folder / "possible_answer" / file.name).write_text(json.dumps(answer) + "\n")
    return file


def task_of(folder: Path, *, source: str = SOURCE, category: str = "multi_turn_base", **row: Any) -> Task:
    """Return the task of a row whose simulators are in another folder."""
    simulators = write_simulators(folder / "elsewhere", source)
    data = DataConfig(path=str(written(folder, category, **row)))
    config = EnvConfig(kind="multi_turn_calls", options={"simulators": str(simulators)}, eval_data=data, thinking=False)
    return open_source(bind("turns", config), split="heldout", seed=0).task(0)


def right(scored: TranscriptScore) -> float:
    assert scored.failure is None, scored.failure
    return scored.score.parts["correct"]


def test_reference_earns_one_and_its_negatives_nothing(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    assert task.thinking == OFF
    assert [message["content"] for message in task.messages] == ASKED[:1]
    assert [tool["function"]["name"] for tool in task.tools] == ["mkdir", "ls", "rm", "wait"]
    assert reference(task) == [say("", DOCS), DONE, say("", LS), DONE]
    assert right(score_turns(task, reference(task))) == 1.0
    wrong = dict(negatives(task))
    assert list(wrong) == [
        "turn 0 without calls",
        "turn 0 not ended",
        "turn 1 without calls",
        "turn 1 not ended",
        "other functions",
    ]
    assert [right(score_turns(task, turns)) for turns in wrong.values()] == [0.0] * 5


def test_each_user_turn_is_judged_by_state_and_results(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    other = score_turns(task, [say("", ("mkdir", {"name": "dogs"})), DONE, say("", LS), DONE])
    assert (right(other), other.score.parts["user_turns"]) == (0.0, 0.0)
    assert other.score.detail == "user's turn 0: GorillaFileSystem.names not as wanted"
    more = [say("", DOCS, ("mkdir", {"name": "x"})), DONE]
    assert right(score_turns(task, more)) == 0.0
    undone = [say("", DOCS, ("mkdir", {"name": "x"})), say("", ("rm", {"name": "x"})), DONE, say("", LS), DONE]
    assert right(score_turns(task, undone)) == 1.0
    unseen = score_turns(task, [say("", DOCS), DONE, say("", ("rm", {"name": "none"})), DONE])
    assert (right(unseen), unseen.score.parts["user_turns"]) == (0.0, 0.5)
    assert unseen.score.detail == "user's turn 1: 1 of 1 wanted results not seen"
    assert right(score_turns(task, [say("", DOCS), DONE, DONE])) == 0.0


def test_earlier_results_count_but_a_turn_needs_calls(tmp_path: Path) -> None:
    task = task_of(tmp_path, asked=["Look.", "Look again."], reference=[["ls()"], ["ls()"]])
    assert right(score_turns(task, [say("", LS), DONE, say("", LS), DONE])) == 1.0
    assert right(score_turns(task, [say("", LS), DONE, say("", ("cp", {})), DONE])) == 1.0
    assert right(score_turns(task, [say("", LS), DONE, DONE])) == 0.0
    assert fault_of(wanted=["a", "a"], seen=["a", "b"], differing=[]) == "1 of 2 wanted results not seen"


def test_the_model_is_told_what_its_calls_return(tmp_path: Path) -> None:
    episode = EnvEpisode(task_of(tmp_path, category="multi_turn_long_context"))
    episode.begin()
    told, spans = [], []
    for text in (
        say("", DOCS, DOCS, LS),
        say("", ("rm", {"name": "docs", "often": 2})),
        say("", ("rm", {}), ("cp", {})),
    ):
        began = time.monotonic()
        result = episode.step(parse_turn(text, thinks=False))
        took = time.monotonic() - began
        told += [message["content"] for message in result.messages]
        spans += [(span.name, span.arguments) for span in result.tool_spans]
        edges = [edge for span in result.tool_spans for edge in (span.began_s, span.began_s + span.seconds)]
        assert edges == sorted(edges)
        assert 0 < edges[0] <= edges[-1] < took
    assert spans == [DOCS, DOCS, LS, ("rm", {"name": "docs", "often": 2}), ("rm", {}), ("cp", {})]
    assert told[:3] == ["None", '{"error": "docs is there already"}', '{"names": ["docs", "long", "old"]}']
    assert told[3] == "Error during execution: once is enough"
    assert told[4].startswith("Error during execution: ")
    assert "missing 1 required positional argument" in told[4]
    assert told[5] == "Error during execution: name 'cp' is not defined"
    episode.close()


def test_a_turn_with_an_unreadable_call_is_one_without_calls(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    broken = score_turns(task, [say("", DOCS) + "<tool_call>{</tool_call>", DONE])
    assert (right(broken), broken.score.parts["format"]) == (0.0, 0.0)
    later = score_turns(task, [say("", DOCS), "<tool_call>{</tool_call>", say("", LS), DONE])
    assert (right(later), later.score.parts["format"]) == (1.0, 0.0)


def test_a_turn_of_the_user_has_twenty_turns_with_calls(tmp_path: Path) -> None:
    task = task_of(tmp_path, asked=["Look.", "Again."], reference=[["ls()"], ["ls()"]])
    most = [say("", LS)] * MAX_STEPS
    assert right(score_turns(task, [*most, DONE, *most, DONE])) == 1.0
    over = score_turns(task, [*most, say("", LS), DONE])
    assert (right(over), over.score.outcome) == (0.0, Outcome.TRUNCATED)


def test_withheld_functions_are_offered_in_words_in_their_turn(tmp_path: Path) -> None:
    task = task_of(
        tmp_path,
        category="multi_turn_miss_func",
        asked=RELEASED,
        reference=[["mkdir('docs')"], [], ["ls()"], ["ls()"]],
        missed_function={"2": ["ls"]},
    )
    assert [tool["function"]["name"] for tool in task.tools] == ["mkdir", "rm", "wait"]
    (offer,) = task.spec["later"][1]
    functions, _, words = offer["content"].partition("\n")
    assert [one["name"] for one in json.loads(functions)] == ["ls"]
    assert words == "I have updated some more functions you can choose from. What about now?"
    assert right(score_turns(task, reference(task))) == 1.0
    assert (
        right(score_turns(task, [say("", DOCS), DONE, say("", LS), DONE, say("", LS), DONE, say("", LS), DONE])) == 1.0
    )
    assert (
        right(score_turns(task, [say("", DOCS), DONE, say("", ("rm", {"name": "old"})), DONE, say("", LS), DONE]))
        == 0.0
    )


def test_rows_that_do_not_hold_together_are_told(tmp_path: Path) -> None:
    with refuses("question", "turn 1"):
        task_of(tmp_path, missed_function={"1": ["ls"]})
    with refuses("missed_function", "'cp'"):
        task_of(tmp_path, missed_function={"1": ["cp"]})
    with pytest.raises(ValueError, match="2 turns"):
        task_of(tmp_path, reference=[["ls()"]])
    with refuses("involved_classes", "'WebSearchAPI'"):
        task_of(tmp_path, involved_classes=["WebSearchAPI"])


def test_reference_calls_are_read_and_never_run() -> None:
    documents: dict[str, Any] = {"sort": {"parameters": {"properties": {"name": {}, "many": {}}}}}
    assert call_in("sort('a', many=[1, {'b': -2.5}])", documents) == {
        "name": "sort",
        "arguments": {"name": "a", "many": [1, {"b": -2.5}]},
    }
    for text in (
        "sort(open('x'))",
        "sort('a', name='b')",
        "sort('a', 1, 2)",
        "sort(**{})",
        "rm('a')",
        "a.sort()",
        "sort(",
        "7",
    ):
        with refuses(text):
            call_in(text, documents)  # fmt: skip


def test_calls_of_the_model_that_do_not_end_are_its_own_fault(tmp_path: Path) -> None:
    scored = score_turns(task_of(tmp_path), [say("", ("wait", {})), DONE])
    assert (right(scored), scored.score.outcome) == (0.0, Outcome.POLICY_FAULT)
    assert scored.score.parts["user_turns"] == 0.0
    assert right(score_turns(task_of(tmp_path), reference(task_of(tmp_path)))) == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"asked": ["Wait."], "reference": [["wait()"]]}, "GorillaFileSystem"),
        ({"asked": ["Go."], "reference": [["rm(name='none')"]]}, "the reference call .* failed"),
        ({"initial_config": {"GorillaFileSystem": {"broken": True}}}, "this scenario can't be loaded"),
        ({"involved_classes": ["GorillaFileSystem", "MathAPI"]}, "math_api.json"),
    ],
    ids=["hangs", "raises", "scenario", "lacking"],
)
def test_a_fault_of_the_simulators_is_no_wrong_answer(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    if "involved_classes" in row:
        with pytest.raises(ValueError, match=message):
            task_of(tmp_path, **row)
        return
    scored = score_turns(task_of(tmp_path, **row), [say("", DOCS), DONE])
    assert scored.failure is not None
    assert scored.failure.kind is FailureKind.ENVIRONMENT
    assert scored.reward is None
    assert message.split(" .* ")[-1] in scored.failure.message


def test_a_simulator_that_sleeps_or_ends_the_process_is_a_fault(tmp_path: Path) -> None:
    asleep = SOURCE.replace(
        "while True:\n            pass", "import os, time\n        time.sleep(60) if len(self.names) else os._exit(1)"
    )
    package = write_simulators(tmp_path / "elsewhere", asleep) / "bfcl_eval"
    for names, wall_s in ((["old"], 1.0), ([], WALL_S)):
        simulators = Simulators(package, wall_s=wall_s)
        config = {"GorillaFileSystem": {"names": names}}
        scene = Scene(classes=("GorillaFileSystem",), config=config, long_context=False)
        with pytest.raises(EnvironmentFault, match="simulators"):
            simulators.play(scene, model=(), reference=({"name": "wait", "arguments": {}},))
        simulators.wall_s = WALL_S
        played = simulators.play(scene, model=(), reference=())
        assert played is not None
        assert played.differing == ()
        assert simulators.process.ready["seal"]["level"] >= 1
        simulators.process.close()


def test_simulators_that_cant_be_had_are_told_with_the_remedy(tmp_path: Path) -> None:
    with refuses("options.simulators", "bfcl_eval"):
        configure_env("multi_turn_calls", {"simulators": str(tmp_path)})
    env = configure_env("multi_turn_calls", {})
    with refuses("simulators", "git clone"):
        read_tasks(DataConfig(path=str(written(tmp_path))), env)
    scored = score_turns(task_of(tmp_path, source="import no_such_module"), [say("", DOCS), DONE])
    assert scored.failure is not None
    assert "GorillaFileSystem of" in scored.failure.message
    assert "can't be loaded (ModuleNotFoundError: No module named 'no_such_module')" in scored.failure.message
    assert "git clone" in scored.failure.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's simulators run as another user")
def test_simulators_that_their_user_may_not_read_are_told(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    (tmp_path / "elsewhere").chmod(0o700)
    scored = score_turns(task, [say("", DOCS), DONE])
    assert scored.failure is not None
    assert "let others read it" in scored.failure.message


def test_envcheck_finds_the_simulators_beside_the_rows(tmp_path: Path) -> None:
    data = write_simulators(tmp_path / "gorilla" / "berkeley-function-call-leaderboard") / "bfcl_eval" / "data"
    file = written(data)
    found = configure_env("multi_turn_calls", {}).in_folder
    assert found is not None
    env = found(file.parent)
    tasks = list(read_tasks(DataConfig(path=str(file)), env).values())
    self_test = pytest.importorskip("temper.orchestrator.tools.debug.grading.envcheck").self_test
    report = self_test(env, tasks)
    assert report.passed, report.findings
