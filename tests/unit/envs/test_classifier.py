"""A sequence classifier as a judge, compared with transformers."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from support import tiny_models
from support.refusals import refuses
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

from temper.envs.binding import bind
from temper.envs.classifier import Classifier, check_classifier, shared_classifier
from temper.envs.classifier_child import BREAK, Scorer
from temper.envs.config import EnvConfig
from temper.envs.core.errors import GraderError
from temper.envs.core.judge_config import JudgeConfig
from temper.envs.source import open_source
from temper.envs.transcript import score_turns
from temper.learner.models.fresh import byte_tokenizer

ANSWERS = ["4", "It is four, I think. " * 9, "no", "\u2074", "4 <|pad|>", "Four."]


def classifier(folder: Path, *, labels: int = 1, pad: int | None = None, **more: Any) -> Path:
    """A tiny random classifier whose scores differ clearly."""
    torch.manual_seed(labels)
    config = LlamaConfig(
        vocab_size=288, **tiny_models.DENSE, num_labels=labels, pad_token_id=pad, initializer_range=0.3, **more
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def chat(answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "2+2=?"}, {"role": "assistant", "content": answer}]


def direct(folder: Path, answer: str) -> tuple[torch.Tensor, int]:
    """The logits of a forward pass of one chat without padding, and its tokens."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    messages = chat(answer.replace("<|pad|>", BREAK.join("<|pad|>")))
    ids = byte_tokenizer().apply_chat_template(messages, return_dict=False, return_tensors="pt")
    with torch.inference_mode():
        return model(input_ids=ids).logits[0], ids.shape[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Classifier]:
    made = shared_classifier(JudgeConfig(classifier=str(folder)))
    yield made
    made._process.close()


@pytest.mark.parametrize("pad", [None, byte_tokenizer().pad_token_id, byte_tokenizer().eos_token_id])
def test_a_padded_batch_scores_like_single_passes(tmp_path: Path, pad: int | None) -> None:
    scorer = Scorer(str(classifier(tmp_path, pad=pad)))
    found = scorer.score([chat(answer) for answer in ANSWERS])
    expected = [direct(tmp_path, answer) for answer in ANSWERS]
    assert [one["logit"] for one in found] == pytest.approx([float(logits) for logits, _ in expected], abs=1e-5)
    assert [one["tokens"] for one in found] == [tokens for _, tokens in expected]
    assert len({round(one["logit"], 3) for one in found}) == len(ANSWERS)


def test_a_chat_that_it_cannot_score_fails_alone(folder: Path) -> None:
    found = Scorer(str(folder)).score([chat("4" * 2000), chat("4")])
    assert [sorted(one) for one in found] == [["error"], ["logit", "tokens"]]
    assert "1024" in found[0]["error"]  # its longest chat


def test_a_model_without_a_trained_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"score\.weight"):
        Scorer(str(tiny_models.llama(tmp_path)))


@pytest.mark.parametrize("labels", [2, 3])
def test_a_model_with_several_outputs_is_refused(tmp_path: Path, labels: int) -> None:
    several = str(classifier(tmp_path, labels=labels))
    for use in (Scorer, check_classifier):
        with pytest.raises(ValueError, match=f"{labels} outputs"):
            use(several)


def test_a_model_without_a_template_is_refused_before_a_run(tmp_path: Path) -> None:
    (classifier(tmp_path) / "chat_template.jinja").unlink()
    with refuses("judge.classifier"):
        check_classifier(str(tmp_path))


def test_a_run_knows_the_absolute_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    judge = bind("math", EnvConfig(judge=JudgeConfig(classifier=folder.name))).ref.settings.judge
    assert judge == JudgeConfig(classifier=str(folder.resolve()))


def test_answers_that_wait_are_scored_by_one_process(folder: Path, running: Classifier) -> None:
    process = running._process
    with ThreadPoolExecutor(len(ANSWERS)) as threads:
        with process.lock:  # so that all of them wait
            asked = [threads.submit(running.score, chat(one), seconds=60) for one in ANSWERS]
            while len(running._waiting) < len(ANSWERS):
                sleep(0.01)
        found = [one.result() for one in asked]
    expected = [float(direct(folder, answer)[0]) for answer in ANSWERS]
    assert [logit for logit, _ in found] == pytest.approx(expected, abs=1e-5)


def test_a_lost_or_stopped_process_is_a_fault_and_restarts(folder: Path, running: Classifier) -> None:
    def process() -> Any:
        return running._process._process

    expected = running.score(chat("4"), seconds=60)
    process().kill()
    process().wait()
    with pytest.raises(GraderError):
        running.score(chat("4"), seconds=60)
    assert running.score(chat("4"), seconds=60) == expected
    os.kill(process().pid, signal.SIGSTOP)
    began = monotonic()
    with pytest.raises(GraderError):
        running.score(chat("4" * 2**20), seconds=0.2)  # longer than a pipe holds
    assert monotonic() - began < 10
    assert running.score(chat("4"), seconds=60) == expected


def test_a_model_that_cannot_be_loaded_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="ascii")
    with pytest.raises(GraderError, match=str(tmp_path)):
        Classifier(str(tmp_path), device="cpu").score(chat("4"), seconds=60)


def test_it_is_the_judge_of_environments(folder: Path, running: Classifier) -> None:
    judge = JudgeConfig(classifier=str(folder), scale=2.0)
    assert shared_classifier(judge) is running
    task = open_source(bind("math", EnvConfig(judge=judge, thinking=False)), split="train", seed=1).task(0)
    found, again = (score_turns(task, ["nonsense"]) for _ in range(2))
    messages = [*task.messages, {"role": "assistant", "content": "nonsense"}]
    (expected,) = Scorer(str(folder)).score([messages])
    part = float(torch.tensor(expected["logit"] / 2.0).sigmoid())
    assert found.reward == pytest.approx(part, abs=1e-5)  # the answer itself is wrong
    assert found.score.parts["judge"] == again.score.parts["judge"] == found.reward
    costs = [[one.score.evidence[f"judge_{what}"] for what in ("requests", "tokens")] for one in (found, again)]
    assert costs == [[1.0, expected["tokens"]], [0.0, 0.0]]


def test_it_reads_the_whole_request(folder: Path, running: Classifier) -> None:
    bound = bind("math", EnvConfig(judge=JudgeConfig(classifier=str(folder)), thinking=False))
    shown = open_source(bound, split="train", seed=1).task(0)
    request = {"role": "user", "content": "Exchange the lamp."}
    (expected,) = Scorer(str(folder)).score([[request, {"role": "assistant", "content": "Done."}]])
    found = score_turns(replace(shown, full_request=(request,)), ["Done."])
    assert found.score.parts["judge"] == pytest.approx(float(torch.tensor(expected["logit"]).sigmoid()), abs=1e-5)


def test_its_process_ends_with_its_input(running: Classifier) -> None:
    running.score(chat("4"), seconds=60)
    process: Any = running._process._process
    process.stdin.close()
    assert process.wait(timeout=20) == 0
    running._process._process = None
