"""A sequence classifier that scores chats in a separate process, which all environments of a worker share."""

import json
import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from temper.envs.core.errors import GraderError
from temper.envs.core.judge_config import JudgeConfig
from temper.envs.core.task import Message
from temper.envs.data.config import is_hub_name
from temper.envs.data.hub import find_cached_file
from temper.envs.sandbox.line_process import LineProcess
from temper.envs.sandbox.per_process import PerProcess

CHILD = Path(__file__).with_name("classifier_child.py")
CONFIG, TEMPLATE, TOKENIZER = "config.json", "chat_template.jinja", "tokenizer_config.json"
START_S = 600.0
BATCH = 16
"""Most chats of a forward pass."""


class Classifier:
    """One child process. It starts on first use and restarts after its loss. Thread-safe."""

    def __init__(self, path: str, *, device: str) -> None:
        self.path = path
        self._process = LineProcess(CHILD, path, (path, device), trusted=True, start_s=START_S)
        self._waiting: deque[tuple[list[Message], Future[dict[str, Any]]]] = deque()

    def score(self, chat: Sequence[Message], *, seconds: float) -> tuple[float, int]:
        """Return the logit and the tokens of a chat. Waiting chats share a batch, which may take `seconds` per chat.

        Raise `GraderError` if the model can't be loaded or can't score the chat, or if its process ends or is late.
        """
        reply: Future[dict[str, Any]] = Future()
        self._waiting.append((list(chat), reply))
        with self._process.lock:
            while not reply.done():
                self._score_batch(seconds)
        found = reply.result()
        if "error" in found:
            raise GraderError(f"the classifier {self.path}: {found['error']}")
        if not math.isfinite(found["logit"]):
            raise GraderError(f"the classifier {self.path} gave the score {found['logit']}")
        return found["logit"], found["tokens"]

    def _score_batch(self, seconds: float) -> None:
        """Reply to the first waiting chats."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        limit_s = seconds * len(batch)
        error = f"its process ended, or took more than {limit_s:g} s for {len(batch)} chats"
        try:
            reply = self._process.ask({"chats": [chat for chat, _ in batch]}, seconds=limit_s)
        except Exception as raised:  # each of these chats fails
            reply, error = None, str(raised)
        replies = [{"error": error}] * len(batch) if reply is None else reply["replies"]
        for (_, waiting), found in zip(batch, replies, strict=True):
            waiting.set_result(found)


SHARED: PerProcess[dict[object, Classifier]] = PerProcess(dict)


def shared_classifier(config: JudgeConfig) -> Classifier:
    """Return this process's classifier with these settings."""
    made, key = SHARED.get(), (config.classifier, config.device)
    return made[key] if key in made else made.setdefault(key, Classifier(config.classifier, device=config.device))


def check_classifier(path: str) -> str:
    """Return a model's absolute folder, or its hub name.

    Raise `ValueError` if it is not on this machine, or has several outputs or no chat template.
    """
    folder = classifier_folder(path)
    for needed in (CONFIG, "*.safetensors"):
        if not any(folder.glob(needed)):
            raise ValueError(f"judge.classifier={path} has no {needed}; set a model's folder or a downloaded hub name")
    config = _json(folder / CONFIG)
    outputs = len(config.get("id2label") or ()) or config.get("num_labels", 2)  # the default of transformers
    if outputs != 1:
        raise ValueError(f"judge.classifier={path} has {outputs} outputs; set a sequence classifier with one")
    if not (folder / TEMPLATE).is_file() and not _json(folder / TOKENIZER).get("chat_template"):
        raise ValueError(f"judge.classifier={path} has no chat template; add {TEMPLATE} to its folder")
    return path if is_hub_name(path) else str(folder)


def classifier_folder(path: str) -> Path:
    """Return a model's absolute folder, in the cache for a hub name. It may be missing."""
    if is_hub_name(path):
        config = find_cached_file(path, file=CONFIG, revision=None)
        return Path(path) if config is None else config.parent
    return Path(path).expanduser().resolve()


def _json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
