"""Escaping of untrusted text: a zero-width space breaks every tag, so that text can't forge a turn, reasoning or a tool
call.

Tags are the control tokens (bos, eos, pad, unk), the tags of reasoning and tool calls, tag-like words (`<...>`, `[INST]`) in
the chat template, and the added tokens that end a turn or that the template writes. Ordinary words stay unchanged, and so do
tokens that a user added, because the model is to read them.
"""

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from temper.envs.core.messages import TEXT_TYPES
from temper.envs.core.turn_text import CLOSE_CALL, CLOSE_THINKING, OPEN_CALL, OPEN_THINKING, to_writable
from temper.rollout.formats.find import CALL_SYNTAXES, THINKING_TAGS, ending_ids
from temper.rollout.formats.messages import (
    ASSISTANT_MESSAGE,
    PROBE_TOOLS,
    REASONING_FIELDS,
    USER_MESSAGE,
    probe_message,
    render,
    tool_answers,
)

BREAK = "\u200b"
"""A zero-width space."""
TAG = re.compile(r"<+[^<>\s]+>+|\[/?[A-Z][A-Z_]*\]")
XML_TAG = re.compile(r"</?\w[\w.:-]*/?>")
OWN_TAGS = frozenset((OPEN_THINKING, CLOSE_THINKING, OPEN_CALL, CLOSE_CALL))
REMEMBERED_BYTES, ENTRY_BYTES = 32 * 2**20, 256
"""Memory of all known texts, and of one text without its escaped form."""
SHORT = 32
"""Characters up to which a text is its own key. The key of a longer one is its digest."""
DECLARED = ("end_of_turn", "thinking_tags", "thought_tags", "tool_calls")
"""Declarations of the turn format in a tokenizer's configuration."""
USUAL = re.compile(
    r"</?s>|<(?:bos|eos|pad|unk|mask)>|<(?:start|end)_of_turn>|\[/?INST\]|"
    r"<\|(?:pad|endoftext|(?:begin|end)_of_text|im_(?:start|sep|end)|(?:start|end)_header_id|eo[tm]_id|user|assistant|system|tool|end)\|>"
)
"""Control tokens of common formats. A model may know them, even if a run gives it another template."""
REMOVED = re.compile(r"""\.replace\(\s*(["'])(.+?)\1\s*,\s*(["'])\3\s*\)""")
"""A text that a template removes from messages, such as `/think`."""
ROLES = ("system", "developer", "user", "assistant", "tool")


class Escaper:
    """Breaks one tokenizer's tags in untrusted text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        template = str(tokenizer.chat_template or "")
        control, written = _control_tokens(tokenizer), _written_text(tokenizer, template)
        own = {
            name: token
            for name, token in ((token.content, token) for token in tokenizer.added_tokens_decoder.values())
            if name in control or name in written or any(syntax.mark.search(name) for syntax in CALL_SYNTAXES)
        }
        special = {name for name, token in own.items() if token.special} | control
        looks = {name for name in own if TAG.fullmatch(name)} | set(TAG.findall(template))
        tags = {tag for tag in special | looks | OWN_TAGS if len(tag) > 1}
        turns = tags - {tag for tag in looks - special if XML_TAG.fullmatch(tag)} - OWN_TAGS
        vocabulary = {tag: token for tag, token in tokenizer.get_vocab().items() if tag in tags}
        if tokenizer.unk_token != tokenizer.eos_token:  # an unknown token is no forged tag
            vocabulary.pop(str(tokenizer.unk_token), None)
        self._removed = tuple(dict.fromkeys(found[1] for found in REMOVED.findall(template)))
        self._longest = max(map(len, tags))
        self._tags = Tags(pattern=_any_of(tags), ids=frozenset(vocabulary.values()))
        turn_ids = frozenset(vocabulary[tag] for tag in turns & vocabulary.keys())
        self._turns = Tags(pattern=_any_of(turns), ids=turn_ids)

    def text(self, text: str) -> str:
        """Return the text without tags. Raises `ValueError` if the tokenizer still finds one."""
        return self._safe(text, self._tags)

    def assistant_text(self, text: str) -> str:
        """Return an assistant's text without turn tags. Reasoning and tool calls may stay in it."""
        return self._safe(text, self._turns)

    def _safe(self, text: str, tags: "Tags") -> str:
        known, key = tags.recall(text)
        if known is None:
            known = self._escape(text, tags)
            tags.remember(key, "" if known == text else known)
        return known

    def _escape(self, text: str, tags: "Tags") -> str:
        text = to_writable(text)
        broken = _break_tags(text, tags.pattern)
        if tags.ids.isdisjoint(self._encode(broken)) and not self._leaves_tag(broken, tags):
            return broken
        # the tokenizer normalizes characters of the text into a tag, for example full-width letters, or the template removes
        # a text inside a tag
        apart = BREAK.join(text)
        if not tags.ids.isdisjoint(self._encode(apart)):
            raise ValueError(f"{text[:80]!r} can't be escaped: the tokenizer encodes it as a tag of the chat template")
        return apart

    def messages(self, messages: Any) -> Any:
        """Return messages as JSON data, alone or in lists, with all text escaped. The content of assistant messages keeps
        its reasoning and tool calls.

        Only the top level counts as a message, not a nested object with a `role`.
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
        """Return JSON data, such as tool schemas, with all text escaped, keys included.

        Arguments that are JSON text are parsed first, because the chat template parses them too.
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
        if isinstance(part, dict) and part.get("type") in TEXT_TYPES and isinstance(part.get("text"), str):
            return {**escaped, "text": self.assistant_text(part["text"])}
        return escaped

    def _leaves_tag(self, text: str, tags: "Tags") -> bool:
        """Return whether a tag is left after the template's removals, which may themselves leave a text to remove."""
        while any(word in text for word in self._removed):
            for word in self._removed:
                text = text.replace(word, "")
                if tags.pattern.search(text) or not tags.ids.isdisjoint(self._encode(text)):
                    return True
        return False

    def _arguments(self, text: str) -> str:
        try:
            given = json.loads(text)
        except ValueError:
            return self.text(text)
        escaped = self.data(given)  # parsing drops duplicate keys, so escape the whole text
        return self.text(text) if escaped == given else json.dumps(escaped, ensure_ascii=False)

    def _parts(self, parts: list[Any]) -> list[Any]:
        """Return the parts of a text so that no tag spans two of them."""
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
        """Return whether a tag spans the border of two texts."""
        near = before + text[: self._longest]
        return any(found.start() < len(before) < found.end() for found in self._tags.pattern.finditer(near))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


@dataclass(kw_only=True, slots=True)
class Tags:
    """Tags to break, and a cache of escaped texts, because each request of an agent repeats its history. Thread-safe."""

    pattern: re.Pattern[str]
    ids: frozenset[int]
    _known: dict[str | bytes, str] = field(default_factory=dict)
    """The escaped form of each text, "" if it is the text itself."""
    _size: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def recall(self, text: str) -> tuple[str | None, str | bytes]:
        """Return the escaped form of a text, None if it is not known, and the key for `remember`."""
        key = text if len(text) <= SHORT else blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        known = self._known.get(key)
        return known if known is None else known or text, key

    def remember(self, key: str | bytes, escaped: str) -> None:
        """Add an escaped form, "" if it is the text itself. Drop the oldest ones above `REMEMBERED_BYTES`."""
        with self._lock:
            if key not in self._known:
                self._known[key] = escaped
                self._size += _size(escaped)
            while self._size > REMEMBERED_BYTES:
                self._size -= _size(self._known.pop(next(iter(self._known))))


def _control_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Return the tokens that the tokenizer names, such as bos and pad, those that end sampling, and the usual ones."""
    ends = ending_ids(Path(tokenizer.name_or_path)) if tokenizer.name_or_path else []
    named = {name for name in tokenizer.special_tokens_map.values() if isinstance(name, str)}
    return named | {
        name for name, token in tokenizer.get_added_vocab().items() if token in ends or USUAL.fullmatch(name)
    }


def _written_text(tokenizer: PreTrainedTokenizerBase, template: str) -> str:
    """Return the texts in which a tag of the format occurs: the template, its dialogues, the declarations, and all tags of
    reasoning.

    A template may compose a tag, such as `<|user|>` from a role. Declared patterns escape characters of tags.
    """
    reasons = {**ASSISTANT_MESSAGE, **dict.fromkeys(REASONING_FIELDS, "-")}
    dialogues = [
        [USER_MESSAGE, reasons],
        *([{"role": role, "content": "-"}, USER_MESSAGE] for role in ROLES),
        *([USER_MESSAGE, {"role": role, "content": "-"}] for role in ROLES),
        *([USER_MESSAGE, probe_message(1, as_text=as_text), *tool_answers(1)] for as_text in (False, True)),
    ]
    rendered = (
        render(tokenizer, dialogue, tools=tools, thinks=thinks, open_turn=True) or ""
        for dialogue in (dialogues if template else ())
        for tools in ((), PROBE_TOOLS)
        for thinks in (True, False)
    )
    declared = [tokenizer.init_kwargs.get(name) for name in DECLARED]
    thinking = (tag for tags in THINKING_TAGS for tag in (tags.opening, tags.closing))
    texts = "\n".join((template, *rendered, str([*declared, tokenizer.response_template]), *thinking))
    return f"{texts}\n{texts.replace(chr(92), '')}"


def _size(escaped: str) -> int:
    return ENTRY_BYTES + 4 * len(escaped)


def _any_of(tags: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(tag) for tag in sorted(tags, key=len, reverse=True)))


def _break_tags(text: str, tags: re.Pattern[str]) -> str:
    """Return a text without tags. Breaking one may leave a shorter one."""
    while tags.search(text):
        text = tags.sub(lambda found: f"{found[0][0]}{BREAK}{found[0][1:]}", text)
    return text
