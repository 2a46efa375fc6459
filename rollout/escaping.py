"""Text that is not ours can't forge a turn, a thought or a call: a zero-width space breaks every tag that it contains.

Tags are the special tokens of a tokenizer, those of its added tokens and of the words of its chat template that look like
one (`<...>`, `[INST]`), and the tags of thoughts and calls. Ordinary words stay as they are, added tokens or not.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from temper.envs.core.turn_text import CLOSE_CALL, CLOSE_THINKING, OPEN_CALL, OPEN_THINKING, writable

BREAK = "\u200b"
"""A zero-width space."""
TAG = re.compile(r"<+[^<>\s]+>+|\[/?[A-Z][A-Z_]*\]")
XML_TAG = re.compile(r"</?\w[\w.:-]*/?>")
OWN_TAGS = frozenset((OPEN_THINKING, CLOSE_THINKING, OPEN_CALL, CLOSE_CALL))
SHORT, REMEMBERED = 16, 4096
"""Characters of a text whose ids are remembered, and how many texts are."""
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of content parts that hold text."""


class Escaper:
    """Breaks the tags of one tokenizer in text that is not ours."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added = {token.content: token for token in tokenizer.added_tokens_decoder.values()}
        special = {name for name, token in added.items() if token.special} | set(tokenizer.all_special_tokens)
        looks = {name for name in added if TAG.fullmatch(name)} | set(TAG.findall(str(tokenizer.chat_template or "")))
        tags = {tag for tag in special | looks | OWN_TAGS if len(tag) > 1}
        turns = tags - {tag for tag in looks - special if XML_TAG.fullmatch(tag)} - OWN_TAGS
        vocabulary = {tag: token for tag, token in tokenizer.get_vocab().items() if tag in tags}
        if tokenizer.unk_token != tokenizer.eos_token:  # what the vocabulary lacks is no forgery
            vocabulary.pop(str(tokenizer.unk_token), None)
        self._longest = max(map(len, tags))
        self._short: dict[str, list[int]] = {}
        self._tags, self._tag_ids = _any_of(tags), frozenset(vocabulary.values())
        self._turns, self._turn_ids = _any_of(turns), frozenset(vocabulary[tag] for tag in turns & vocabulary.keys())

    def text(self, text: str) -> str:
        """Return a text in which no tag is left. Raises `ValueError` where the tokenizer finds one all the same."""
        return self._safe(text, self._tags, self._tag_ids)

    def assistant_text(self, text: str) -> str:
        """Return an assistant's own text without tags of turns; thoughts and calls may stay in it."""
        return self._safe(text, self._turns, self._turn_ids)

    def _safe(self, text: str, tags: re.Pattern[str], ids: frozenset[int]) -> str:
        text = writable(text)
        broken = _break_tags(text, tags)
        if ids.isdisjoint(self._encode(broken)):
            return broken
        apart = BREAK.join(text)  # it holds what the tokenizer first turns into a tag, such as letters of full width
        if not ids.isdisjoint(self._encode(apart)):
            raise ValueError(f"{text[:80]!r} can't be told from the tags of the chat template")
        return apart

    def messages(self, messages: Any) -> Any:
        """Return messages as JSON data, alone or in lists, with every text in them escaped; assistants keep what is their own.

        That is their content, in one piece or in parts. What else has a `role` somewhere inside is no message.
        """
        if isinstance(messages, list | tuple):
            return [self.messages(message) for message in messages]
        if not (isinstance(messages, Mapping) and messages.get("role") == "assistant"):
            return self.data(messages)
        escaped = self.data(messages)
        content = messages.get("content")
        if isinstance(content, str):
            return {**escaped, "content": self.assistant_text(content)}
        if isinstance(content, list):
            return {**escaped, "content": self._parts([self._own_part(part) for part in content])}
        return escaped

    def data(self, value: Any) -> Any:
        """Return JSON data, such as the schemas of tools, with every text in it escaped, keys too.

        Arguments that are JSON inside a text are read, since whoever renders them reads them too.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self._field(str(key), inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return self._parts([self.data(inner) for inner in value])
        return value

    def _field(self, key: str, value: Any) -> Any:
        return self._arguments(value) if key == "arguments" and isinstance(value, str) else self.data(value)

    def _own_part(self, part: Any) -> Any:
        if isinstance(part, str):
            return self.assistant_text(part)
        escaped = self.data(part)
        if isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str):
            return {**escaped, "text": self.assistant_text(part["text"])}
        return escaped

    def _arguments(self, text: str) -> str:
        try:
            given = json.loads(text)
        except ValueError:
            return self.text(text)
        escaped = self.data(given)  # the text may hold more than what is read of it, such as a key that stands twice
        return self.text(text) if escaped == given else json.dumps(escaped, ensure_ascii=False)

    def _parts(self, parts: list[Any]) -> list[Any]:
        """Return the parts of one text so that a tag which begins in one of them is not completed by the next."""
        before, joined = "", []
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                if self._completes(before, text):
                    text = BREAK + text
                    part = {**part, "text": text} if isinstance(part, dict) else text
                before = (before + text)[-self._longest :]
            joined.append(part)
        return joined

    def _completes(self, before: str, text: str) -> bool:
        """Return whether a tag lies across the border of two texts."""
        near = before + text[: self._longest]
        return any(found.start() < len(before) < found.end() for found in self._tags.finditer(near))

    def _encode(self, text: str) -> Iterable[int]:
        """Return the ids of a text; those of short ones are remembered, since keys and roles are in every message."""
        known = self._short.get(text)
        if known is not None:
            return known
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(text) <= SHORT:
            if len(self._short) == REMEMBERED:
                self._short.clear()
            self._short[text] = ids
        return ids


def _any_of(tags: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(tag) for tag in sorted(tags, key=len, reverse=True)))


def _break_tags(text: str, tags: re.Pattern[str]) -> str:
    """Return a text without the tags; breaking one may leave a shorter one in it."""
    while tags.search(text):
        text = tags.sub(lambda found: f"{found[0][0]}{BREAK}{found[0][1:]}", text)
    return text
