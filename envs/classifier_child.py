"""Scores chats with a sequence classifier. It runs as a separate process (`envs.classifier`).

It writes an empty object when the model is loaded, and then for each line of chats a line of replies. It exits when its
stdin closes.
"""

import json
import os
import sys
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

BREAK = "\u200b"
"""A zero-width space, which breaks special tokens in an answer: they could end the model's turn."""


class Scorer:
    """A classifier in evaluation mode. Raise `ValueError` if it has no trained head or several outputs."""

    def __init__(self, path: str, *, device: str = "cpu") -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        added = self._tokenizer.added_tokens_decoder.values()
        self._special = {*self._tokenizer.all_special_tokens, *(one.content for one in added if one.special)}
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            path,
            dtype=torch.float32 if device == "cpu" else "auto",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        if missing := loaded["missing_keys"]:
            raise ValueError(f"{path} is no trained sequence classifier: it lacks {', '.join(sorted(missing))}")
        if model.config.num_labels != 1:
            raise ValueError(f"{path} has {model.config.num_labels} outputs; set a sequence classifier with one")
        self._model = model.to(device).eval()
        self._config = model.config.get_text_config()
        self._config.use_cache = False
        self._pad = self._config.pad_token_id
        positions = getattr(self._config, "max_position_embeddings", None) or sys.maxsize
        self._longest = min(positions, self._tokenizer.model_max_length)

    def score(self, chats: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the logit and the tokens of each chat, or its error."""
        replies: list[dict[str, Any]] = [{} for _ in chats]
        rows: dict[int, list[int]] = {}
        for number, chat in enumerate(chats):
            try:
                rows[number] = self._encode(chat)
            except Exception as error:  # a template may refuse a chat
                replies[number] = {"error": f"{type(error).__name__}: {error}"[:500]}
        if rows:
            for (number, ids), logit in zip(rows.items(), self._logits(list(rows.values())), strict=True):
                replies[number] = {"logit": logit, "tokens": len(ids)}
        return replies

    def _encode(self, chat: list[dict[str, Any]]) -> list[int]:
        *prompt, answer = chat
        text = answer["content"]
        for token in self._special:
            text = text.replace(token, BREAK.join(token))
        broken = [*prompt, answer | {"content": text}]
        ids: list[int] = self._tokenizer.apply_chat_template(broken, tokenize=True, return_dict=False)
        if len(ids) > self._longest:
            raise ValueError(f"the chat has {len(ids)} tokens, but the model's context has {self._longest}")
        return ids

    @torch.inference_mode()
    def _logits(self, rows: list[list[int]]) -> list[float]:
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
        logits: list[float] = self._model(input_ids=ids_BT, attention_mask=mask_BT).logits[:, 0].tolist()
        return logits


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print
    path, device = sys.argv[1:]
    scorer = Scorer(path, device=device)
    print(json.dumps({}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps({"replies": scorer.score(json.loads(line)["chats"])}), file=out, flush=True)


if __name__ == "__main__":
    main()
