"""A sequence classifier that scores chats in a separate process, which all environments of a worker share."""

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.envs.core.errors import GraderError
from temper.envs.core.judge_config import JudgeConfig
from temper.envs.core.task import Message
from temper.envs.data.config import names_hub
from temper.envs.sandbox.line_process import START_S, LineProcess, NotStarted
from temper.envs.sandbox.per_process import PerProcess

CHILD = Path(__file__).with_name("classifier_child.py")
BATCH = 16
"""Most chats of a forward pass."""
PAUSE_S = 60.0
"""Seconds after a failed load before the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierScore:
    """The logit of a chat, and the tokens of the chat."""

    logit: float
    tokens: int


class Classifier:
    """One child process. It starts on first use and restarts after its loss. Thread-safe."""

    def __init__(self, path: str, *, device: str, threads: int) -> None:
        self.path = path
        place = str(Path(path).resolve()) if Path(path).is_dir() else path
        self._process = LineProcess(CHILD, path, (place, device, str(threads)), trusted=True)
        self._waiting: deque[tuple[dict[str, Any], Future[dict[str, Any]]]] = deque()
        self._failure, self._failed_at = "", 0.0

    def score(self, chat: Sequence[Message], *, label: str | None, seconds: float) -> ClassifierScore:
        """Return the score of a chat. Chats that wait for the process share a batch, which may take `seconds`.

        Raise `GraderError` if the model can't be loaded or can't score the chat, or if its process ends or is late.
        """
        reply: Future[dict[str, Any]] = Future()
        self._waiting.append(({"messages": list(chat), "label": label}, reply))
        with self._process.lock:
            while not reply.done():
                self._score_batch(seconds)
        found = reply.result()
        if "error" in found:
            raise GraderError(f"the classifier {self.path}: {found['error']}")
        if not math.isfinite(found["logit"]):
            raise GraderError(f"the classifier {self.path} gave the score {found['logit']}")
        return ClassifierScore(logit=found["logit"], tokens=found["tokens"])

    def close(self) -> None:
        with self._process.lock:
            self._process.close()

    def _score_batch(self, seconds: float) -> None:
        """Reply to the first waiting chats."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            replies = self._ask([request for request, _ in batch], seconds)
        except Exception as error:  # each of these chats fails
            replies = [{"error": str(error)}] * len(batch)
        for (_, reply), found in zip(batch, replies, strict=True):
            reply.set_result(found)

    def _ask(self, requests: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
        if self._failure and time.monotonic() - self._failed_at < PAUSE_S:
            raise GraderError(self._failure)
        try:
            self._process.start()
            self._failure = self._process.ready.get("error", "")
        except NotStarted:
            self._failure = f"it was not loaded in {START_S:g} s; if it is on the hub, download it first"
        if self._failure:
            self._failed_at = time.monotonic()
            self._process.close()
            raise GraderError(self._failure)
        reply = self._process.ask({"requests": requests}, seconds=seconds)
        if reply is None:
            raise GraderError(f"its process ended, or took more than {seconds:g} s for {len(requests)} chats")
        replies: list[dict[str, Any]] = reply["replies"]
        return replies


SHARED: PerProcess[dict[object, Classifier]] = PerProcess(dict)


def shared_classifier(config: JudgeConfig) -> Classifier:
    """Return this process's classifier with these settings."""
    made = Classifier(config.classifier, device=config.device, threads=config.threads)
    return SHARED.get().setdefault((config.classifier, config.device, config.threads), made)


def check_classifier(path: str) -> None:
    """Raise `ValueError` if a path is neither a model's folder nor a hub name."""
    if not names_hub(path) and not (Path(path) / "config.json").is_file():
        raise ValueError(f"judge.classifier={path} is no folder with config.json; set a model's folder or hub name")
