"""Search: the index, the tools over several turns, rows with a corpus in their folder or by name."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.bound import opened, row_task, say
from support.refusals import refuses

from temper.envs.binding import bind
from temper.envs.catalog import environment
from temper.envs.config import EnvConfig
from temper.envs.core.task import Task
from temper.envs.data.config import DataConfig
from temper.envs.source import open_source
from temper.envs.tools.corpus import Corpus, Document
from temper.envs.transcript import score_turns

DOCUMENTS = [
    {"_id": "d1", "title": "France", "text": "The capital of France is Paris, on the Seine."},
    {"id": 2, "contents": "Italy\nRome is the capital of Italy."},
    {"docid": "d3", "text": "Bread, bread and bread."},
]
ROW = {"question": "What is the capital of France?", "answer": ["Paris", "Paris, France"], "reference_ids": ["d1"]}


def write_corpus(folder: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or DOCUMENTS))
    return path


def task_of(row: dict[str, Any], corpus: Path, **options: Any) -> Task:
    return row_task("search", row, corpus=str(corpus), **options)


def shown(task: Task, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """Return the answers to one turn with these calls."""
    env = opened(task)
    return [message["content"] for message in env.step("</think>" + say("", *calls))[4]["messages"]]


def test_a_corpus_gives_the_best_documents_first() -> None:
    corpus = Corpus(
        [Document(id=str(number), title="", text=text) for number, text in enumerate(["a b", "b b b", "c", "c"])]
    )
    assert [one.id for one in corpus.search("B", 5)] == ["1", "0"]
    assert [one.id for one in corpus.search("c", 5)] == ["2", "3"]
    assert [one.id for one in corpus.search("c", 1)] == ["2"]
    assert corpus.search("nothing", 5) == corpus.search("", 5) == corpus.search("?!", 5) == []
    assert corpus.search("a " * 100_000, 1)[0].id == "0"
    with refuses("id"):
        corpus.open("7")


def test_search_and_open_answer_in_the_words_of_the_corpus(tmp_path: Path) -> None:
    task = task_of(ROW, write_corpus(tmp_path), results=2, snippet=11, page=30)
    found, opened, none = shown(
        task, ("search", {"query": "capital of France"}), ("open", {"id": "d1"}), ("search", {"query": "zebra"})
    )
    assert found == "d1: France The capital\n2: Italy Rome"
    assert opened == "France\nThe capital of France i"
    assert none == "nothing found"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("open", {"id": "d9"}), ("open", {"id": 2}), ("search", {"q": "x"}), ("find", {"query": "x"})],
)
def test_a_wrong_call_is_answered_by_an_error_and_counted(tmp_path: Path, name: str, arguments: dict[str, Any]) -> None:
    task = task_of(ROW, write_corpus(tmp_path))
    assert shown(task, (name, arguments))[0].startswith("error: ")
    judged = score_turns(task, [say("", (name, arguments), ("search", {"query": "France"})), "Paris"])
    assert (judged.reward, judged.score.parts["tool_errors"]) == (1.0, 0.5)


def test_the_reference_documents_that_were_opened_are_a_part(tmp_path: Path) -> None:
    task = task_of(ROW | {"reference_ids": ["d1", 2]}, write_corpus(tmp_path))
    assert score_turns(task, ["Paris"]).score.parts["found"] == 0.0
    opened = say("", ("open", {"id": "d1"}), ("open", {"id": "d3"}))
    assert score_turns(task, [opened, "Paris, France"]).score.parts["found"] == 0.5
    assert score_turns(task, [opened, "Rome"]).reward == 0.0


def test_an_episode_without_an_answer_is_cut_off(tmp_path: Path) -> None:
    task = task_of(ROW, write_corpus(tmp_path))
    judged = score_turns(task, [say("", ("search", {"query": "France"}))] * 8)
    assert (judged.reward, judged.score.parts["found"]) == (0.0, 0.0)


def test_rows_find_their_corpus_beside_them(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    flashrag = [{"question": f"Capital of France ({number})?", "golden_answers": ["Paris"]} for number in range(40)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in [*flashrag, ROW]))
    config = EnvConfig(kind="search", data=DataConfig(path=str(rows)))
    with refuses("options.corpus", "corpus.jsonl"):
        open_source(bind("ask", config), split="train", seed=0)
    write_corpus(tmp_path)
    task = open_source(bind("ask", config), split="train", seed=0).task(0)
    assert score_turns(task, [say("", ("search", {"query": "France"})), "Paris"]).reward == 1.0


def test_every_generated_task_has_a_corpus_of_its_own() -> None:
    env = environment("search")
    assert env.generate is not None
    corpora = [env.generate(random.Random(seed), 1).spec["documents"] for seed in range(20)]
    assert len({json.dumps(sorted(documents)) for documents in corpora}) == 20


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (ROW | {"reference_ids": ["d9"]}, "reference_ids"),
        (ROW | {"reference_ids": "d1"}, "reference_ids"),
        (ROW | {"answer": []}, "answer"),
        (ROW | {"answer": " "}, "answer"),
        (ROW | {"question": None}, "question"),
    ],
)
def test_a_broken_row_is_refused_by_name(tmp_path: Path, row: dict[str, Any], key: str) -> None:
    with refuses(key):
        task_of(row, write_corpus(tmp_path))


@pytest.mark.parametrize(
    ("documents", "key"),
    [
        ([{"id": "1"}], "id"),
        ([{"id": "1", "text": "a"}] * 2, "ids"),
        ([{"text": "a"}], "id"),
    ],
)
def test_a_broken_corpus_is_refused_by_name(tmp_path: Path, documents: list[dict[str, Any]], key: str) -> None:
    with refuses(key):
        task_of(ROW, write_corpus(tmp_path, documents))
