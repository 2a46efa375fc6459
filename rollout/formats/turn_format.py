"""The format of a model family, and the parser of its turns.

Turns of gpt-oss (OpenAI's Harmony format) have messages on the channels analysis, commentary and final:

    <|channel|>analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>final<|message|>ANSWER<|return|>
    <|start|>assistant to=functions.NAME<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>

The prompt contains the first `<|start|>assistant`. `<|return|>` and `<|call|>` end a turn, `<|end|>` ends a message. A call
may name its recipient before or after its channel. Text for the user in such a turn is on commentary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Tool
from temper.envs.core.turn_text import BadCall, Call, ParsedTurn, Tags, answer_text, call_from_text, split_turn
from temper.rollout.formats.call_syntax import CallSyntax

START, CHANNEL, MESSAGE, END, RETURN, CALL = (
    f"<|{word}|>" for word in ("start", "channel", "message", "end", "return", "call")
)
CHANNEL_TAGS = Tags(opening=f"{CHANNEL}analysis{MESSAGE}", closing=END)
NEXT_MESSAGE = f"{END}{START}assistant"
"""End of thinking. The model then chooses between an answer and a call."""
TURN_ENDS = (RETURN, CALL)
HEAD = re.compile(r"(?:<\|start\|>assistant)?(?P<head>.*?)<\|message\|>(?P<body>.*)", re.DOTALL)
HEAD_TAG = re.compile(r"<\|(?:start|channel|message)\|>")
"""An answer may not contain one: it would be an unannounced message."""
NAME = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
ON_CHANNEL = re.compile(r"<\|channel\|>(\w+)")


def read_channels(text: str, *, thinks: bool) -> ParsedTurn:
    """Parse a turn of channels. Without thinking it may have no analysis."""
    reasoning_parts, answers, commentary, call_texts = [], [], [], []
    calls: list[Call | BadCall] = []
    well_formed, over = True, False
    for part in text.split(END):
        found = HEAD.fullmatch(part.strip())
        if not part.strip():
            continue
        well_formed &= found is not None and not over
        if found is None:
            continue
        head, body = found["head"], found["body"]
        channel = ON_CHANNEL.search(head)
        if (name := NAME.search(head)) is not None:
            calls.append(call_from_text(name[1], body))
            call_texts.append(f"{head.strip()}{MESSAGE}{body}")
            over = True
        elif channel is not None and channel[1] == "analysis":
            reasoning_parts.append(body.strip())
        elif channel is not None and channel[1] == "commentary":
            commentary.append(body)
        elif channel is not None and channel[1] == "final":
            answers.append(body)
            over = True
        else:
            well_formed = False
    content = answer_text("\n".join([*commentary, *answers]))
    readable = bool(answers or calls) and (thinks or not reasoning_parts) and HEAD_TAG.search(content) is None
    return ParsedTurn(
        text=text,
        reasoning="\n".join(reasoning_parts) if thinks else None,
        answer=answer_text("\n".join([*commentary, *answers, *call_texts])) if readable else "",
        content=content if readable else "",
        readable=readable,
        well_formed=well_formed and readable and len(reasoning_parts) <= 1,
        calls=tuple(calls) if readable else (),
    )


OPENING_TOKENS = 64
"""Number of tokens before a turn in which the opening of its thinking is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFormat:
    """The format of a model's reasoning, tool calls and turn ends. See `find_format`.

    `tags` enclose reasoning. None if the model does not think. `closing` ends thinking by force. `reasoning_field` is the
    message field that the template writes as reasoning, or None. `ends` are the tokens that end a turn, with ids `end_ids`.
    `parted_by` is the text between a turn and the next message; after calls, the last entry. `behind_answer` is the text
    between an answer and that. `calls` is the call syntax. None for the reason `no_calls`. `parallel`: a turn may have
    several calls. `arguments_as_text`: the template needs arguments as JSON text. `think` and `no_think` are the system
    texts of both modes, or "". `channels`: the format of gpt-oss.
    """

    name: str
    tags: Tags | None
    closing: str
    reasoning_field: str | None
    ends: tuple[str, ...]
    end_ids: tuple[int, ...]
    parted_by: tuple[str, ...]
    calls: CallSyntax | None
    no_calls: str
    behind_answer: str = ""
    parallel: bool = True
    arguments_as_text: bool = False
    think: str = ""
    no_think: str = ""
    channels: bool = False

    @property
    def reads_calls(self) -> bool:
        return self.channels or self.calls is not None

    def parse(self, text: str, *, thinks: bool, tools: Sequence[Tool] = (), opened: bool = True) -> ParsedTurn:
        """Parse a turn, without its end: reasoning, answer and calls, and whether each is well formed.

        `opened`: the prompt has opened the thinking. The schemas of `tools` give argument types if the family writes none.
        """
        if self.channels:
            return read_channels(text, thinks=thinks)
        parts = split_turn(self.without_end(text), self.tags, thinks=thinks, opened=opened)
        calls, content = ((), parts.answer) if self.calls is None else self.calls.read(parts.answer, tools)
        return ParsedTurn(
            text=text,
            reasoning=parts.reasoning,
            answer=parts.answer,
            content=answer_text(content),
            readable=parts.readable,
            well_formed=parts.well_formed,
            calls=calls,
        )

    def without_end(self, text: str) -> str:
        """Return a text without the family's text between an answer and its end."""
        return text.rstrip().removesuffix(self.behind_answer) if self.behind_answer else text


def opens_thinking(tokenizer: PreTrainedTokenizerBase, tags: Tags | None, context_ids: Sequence[int]) -> bool:
    """Return whether the context of a turn ends with the opening of thinking."""
    return tags is not None and _ends_with(tokenizer, tags.opening, tuple(context_ids[-OPENING_TOKENS:]))


@lru_cache(maxsize=4096)  # called several times per turn, with equal prompts within a group
def _ends_with(tokenizer: PreTrainedTokenizerBase, opening: str, ids: tuple[int, ...]) -> bool:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False)).rstrip().endswith(opening)
