"""Scores chats with a sequence classifier. It runs as a separate process (`envs.classifier`).

It answers lines of JSON. The first line has the error of the load, if any. Each further line answers a batch of requests. It
ends with its input.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Iterable
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

BREAK = "\u200b"
"""A zero-width space, which breaks special tokens in an answer: they could end the model's turn."""


class Scorer:
    """A classifier in evaluation mode. Raise `ValueError` if it has no chat template, or no trained head."""

    def __init__(self, path: str, *, device: str = "cpu") -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        if not self._tokenizer.chat_template:
            raise ValueError(f"{path} has no chat template; add chat_template.jinja to its folder")
        added = self._tokenizer.added_tokens_decoder.values()
        self._special = {*self._tokenizer.all_special_tokens, *(one.content for one in added if one.special)}
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            path,
            dtype=torch.float32 if device == "cpu" else "auto",
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        if missing := loaded["missing_keys"]:
            raise ValueError(f"{path} is no trained sequence classifier: it lacks {', '.join(sorted(missing))}")
        self._model = model.to(device).eval()
        self._labels = [model.config.id2label[place] for place in range(model.config.num_labels)]
        self._config = model.config.get_text_config()
        self._pad = self._config.pad_token_id
        positions = getattr(self._config, "max_position_embeddings", None) or sys.maxsize
        self._longest = min(positions, self._tokenizer.model_max_length)

    def score(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the logit and the tokens of each request, or its error."""
        replies: list[dict[str, Any]] = [{} for _ in requests]
        rows: dict[int, tuple[int, list[int]]] = {}
        for number, request in enumerate(requests):
            try:
                rows[number] = self._place(request["label"]), self._encode(request["messages"])
            except Exception as error:  # a template may refuse a chat
                replies[number] = {"error": describe(error)}
        if rows:
            logits = self._logits([ids for _, ids in rows.values()])
            for (number, (place, ids)), row in zip(rows.items(), logits, strict=True):
                replies[number] = {"logit": self._logit(row, place), "tokens": len(ids)}
        return replies

    def _place(self, label: str | None) -> int:
        if label is None and len(self._labels) == 1:
            return 0
        if label not in self._labels:
            raise ValueError(f"set judge.label to one of its labels {', '.join(self._labels)}, not {label}")
        return self._labels.index(label)

    def _encode(self, messages: list[dict[str, Any]]) -> list[int]:
        *prompt, answer = messages
        text = answer["content"]
        for token in self._special:
            text = text.replace(token, BREAK.join(token))
        chat = [*prompt, answer | {"content": text}]
        ids: list[int] = self._tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
        if len(ids) > self._longest:
            raise ValueError(f"the chat has {len(ids)} tokens, but it reads at most {self._longest}")
        return ids

    @torch.inference_mode()
    def _logits(self, rows: list[list[int]]) -> torch.Tensor:
        """Return the logits of chats, padded on the right. transformers reads them at the last id that is no padding."""
        used = {one for row in rows for one in row}
        pad = self._pad
        if pad is None or pad < 0:
            pad = next(one for one in range(self._config.vocab_size) if one not in used)
        self._config.pad_token_id = pad
        longest = max(map(len, rows))
        ids_BT = torch.tensor([row + [pad] * (longest - len(row)) for row in rows], device=self._model.device)
        lengths_B = torch.tensor([len(row) for row in rows], device=self._model.device)
        mask_BT = (torch.arange(longest, device=self._model.device) < lengths_B[:, None]).long()
        logits: torch.Tensor = self._model(input_ids=ids_BT, attention_mask=mask_BT).logits
        return logits.float()

    def _logit(self, logits: torch.Tensor, place: int) -> float:
        """Return the logit of a label. If labels exclude each other, it is the logarithm of the odds of its softmax."""
        if len(logits) == 1 or self._model.config.problem_type == "multi_label_classification":
            return float(logits[place])
        others = torch.cat([logits[:place], logits[place + 1 :]])
        return float(logits[place] - others.logsumexp(0))


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def answer(scorer: Scorer, line: str) -> dict[str, Any]:
    requests = json.loads(line)["requests"]
    try:
        return {"replies": scorer.score(requests)}
    except Exception as error:  # such as a device without memory
        return {"replies": [{"error": describe(error)}] * len(requests)}


def read(source: Iterable[str], lines: "queue.Queue[str]") -> None:
    """Put lines into a queue. End the process with its input, even while it loads or scores."""
    for line in source:
        lines.put(line)
    os._exit(0)


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print
    path, device, threads = sys.argv[1:]
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=read, args=(sys.stdin, lines), daemon=True).start()
    torch.set_num_threads(int(threads))
    try:
        scorer = Scorer(path, device=device)
    except Exception as error:
        print(json.dumps({"error": describe(error)}), file=out, flush=True)
        return
    print(json.dumps({}), file=out, flush=True)
    while True:
        print(json.dumps(answer(scorer, lines.get())), file=out, flush=True)


if __name__ == "__main__":
    main()
