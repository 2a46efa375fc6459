"""Messages to token ids, for any chat template: prompts, observations, and the turns of demonstrations.

Each part of a conversation is rendered once and appended. So sampled ids never change, even if the template would render
earlier turns differently.
"""

from collections.abc import Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from temper.envs.core.errors import TemplateRefusal
from temper.envs.core.task import Message, Task, Tool
from temper.envs.core.turn_text import BadCall, Call, ParsedTurn, Tags, call_message
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.escaping import Escaper
from temper.rollout.formats.find import find_format
from temper.rollout.formats.messages import (
    ASSISTANT_MESSAGE,
    REASONING,
    TEXT_MARK,
    USER_MESSAGE,
    prepare_messages,
    render,
    set_mode,
    strip_common_prefix,
    thinking_variables,
    with_line,
)
from temper.rollout.formats.turn_format import TurnFormat, opens_thinking

WITHOUT_SYSTEM = (
    "move the system text into the first user message, or set model.chat_template to a template that accepts it"
)
UNNAMED = BadCall(error="")
"""A call without a name or an id from the model."""


def _calling(name: str) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": [call_message(name, {"key": "a"})]}


TOLD: Message = {"role": "tool", "content": TEXT_MARK}
OFFERED: Tool = {
    "type": "function",
    "function": {"name": TEXT_MARK, "description": "-", "parameters": {"type": "object", "properties": {}}},
}
PARTS: dict[str, tuple[list[Message], list[Tool]]] = {
    "tools": ([USER_MESSAGE], [OFFERED]),
    "tool_calls": ([USER_MESSAGE, _calling(TEXT_MARK)], []),
    "tool": ([USER_MESSAGE, _calling("get"), TOLD], []),
    "system": ([{"role": "system", "content": TEXT_MARK}, USER_MESSAGE], []),
}
"""Parts of a conversation that a template may not support, each with example messages and tools."""


class Renderer:
    """Renders parts of a conversation with a tokenizer's chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, thinking: ThinkingConfig | None = None) -> None:
        self._tokenizer = tokenizer
        self._thinking = thinking or ThinkingConfig()
        self.format: TurnFormat = find_format(tokenizer)
        self._end_ids = frozenset(self.format.end_ids)
        self._last: tuple[Task, tuple[Message, ...], tuple[int, ...]] | None = None
        self._openings: dict[bool, str] = {}
        self._dropped: dict[str, bool] = {}
        self._escaper = Escaper(tokenizer)

    def prompt_ids(self, task: Task, first: tuple[Message, ...] = ()) -> tuple[int, ...]:
        """Return the ids of a task's prompt: its mode notice at the end of the last user message, then the opening of the
        turn.

        The environment adds the messages `first`. The last prompt is cached, because all answers to one task need it.
        """
        last = self._last
        if last is None or (last[0], last[1]) != (task, first):
            messages = with_notice([*task.messages, *first], self._thinking.notice(task.thinking))
            ids = self.encode(self._render(messages, tools=task.tools, thinks=task.thinks))
            last = self._last = (task, first, ids)
        return last[2]

    def observation_ids(
        self,
        messages: Sequence[Message],
        *,
        thinks: bool,
        calls: Sequence[Call | BadCall] = (),
        after: Sequence[int] = (),
    ) -> tuple[int, ...]:
        """Return the ids after the assistant's turn: the observation and the opening of the next turn.

        Tool messages answer the turn's `calls` in order. `after` are the turn's ids. If it does not end with the template's
        end of turn, that end comes first.
        """
        if any(message.get("role") == "tool" for message in messages) and self.format.reads_calls:
            text = self._answered_calls(calls, messages, thinks=thinks)
        else:
            text = self._render([USER_MESSAGE, ASSISTANT_MESSAGE, *messages], thinks=thinks)
        tail = text[text.index(TEXT_MARK) + len(TEXT_MARK) :]
        found = [(tail.index(end), -len(end), end) for end in self.format.parted_by if end in tail]
        if not found:
            raise ValueError(
                f"the chat template does not end an assistant turn with {self.format.parted_by}, but {tail[:40]!r}"
            )
        start, _, end = min(found)
        ends = dict(zip(self.format.ends, self.format.end_ids, strict=True))
        ended = not after or after[-1] == ends.get(end) or (end not in ends and after[-1] in self._end_ids)
        return self.encode(tail[start + len(end) :] if ended else tail[start:])

    def _answered_calls(self, calls: Sequence[Call | BadCall], messages: Sequence[Message], *, thinks: bool) -> str:
        """Return a turn of calls and their answers. If the template refuses the model's names or ids, use default ones."""
        try:
            return self._render([USER_MESSAGE, self._called(calls), *messages], thinks=thinks)
        except ValueError:
            return self._render([USER_MESSAGE, self._called([UNNAMED] * len(calls)), *messages], thinks=thinks)

    def _called(self, calls: Sequence[Call | BadCall]) -> Message:
        """Return a turn with calls of these names, with the mark in the last arguments; a single call if the family allows
        no more.
        """
        names = [(call.name, call.id) if isinstance(call, Call) else ("unknown", "") for call in calls or [UNNAMED]]
        kept = names if self.format.parallel else names[:1]
        made: list[dict[str, object]] = []
        for number, (name, given) in enumerate(kept):
            arguments = {"key": TEXT_MARK} if number == len(kept) - 1 else {}
            made.append(call_message(name, arguments) | ({"id": given} if given else {}))
        return {"role": "assistant", "content": "", "tool_calls": made}

    def parse(self, text: str, task: Task, context_ids: Sequence[int]) -> ParsedTurn:
        """Parse a turn that follows these ids, in the format of the model's family."""
        opened = not task.thinks or self.opens_thinking(context_ids)
        return self.format.parse(text, thinks=task.thinks, tools=task.tools, opened=opened)

    def opens_thinking(self, context_ids: Sequence[int]) -> bool:
        return opens_thinking(self._tokenizer, self.format.tags, context_ids)

    def answer_text(
        self, message: Message, *, thinks: bool, context_ids: Sequence[int] | None = None, is_context: bool = False
    ) -> str:
        """Return the text that a model would sample for `message`: reasoning, closing, answer, end of turn.

        `context_ids` precede it, and may open its thinking. None for a first turn. Reasoning that the template drops is
        written with the model's tags. A turn that `is_context` may lack reasoning, and then gets an empty thought if the
        template opens one. Otherwise raises `ValueError` for missing reasoning. Raises it too for several calls if the family
        allows one per turn.
        """
        calls = message.get("tool_calls") or ()
        if len(calls) > 1 and self.format.reads_calls and not self.format.parallel:
            raise ValueError(
                f"the model's chat template allows one tool call per turn, the message has {len(calls)}; put each call in its "
                f"own turn, followed by its answer"
            )
        if thinks not in self._openings:
            self._openings[thinks] = self._render([USER_MESSAGE], thinks=thinks)
        given = dict(message) if thinks else {k: v for k, v in message.items() if k != REASONING}
        whole = self._render([USER_MESSAGE, given], thinks=thinks, open_turn=False)
        if self.format.reads_calls and any(call["function"]["name"] not in whole for call in calls):
            whole = self._answered(given, thinks=thinks)
        sampled_text = self._behind(self._openings[thinks], whole, given, thinks=thinks, is_context=is_context)
        if thinks and context_ids is not None:
            sampled_text = self._opened(sampled_text, opened=self.opens_thinking(context_ids))
        end, length = max((sampled_text.rfind(end), len(end)) for end in self.format.ends)
        if end >= 0:
            return sampled_text[: end + length]
        return sampled_text + (self.format.parted_by[-1] if calls else self.format.parted_by[0])

    def _answered(self, message: Message, *, thinks: bool) -> str:
        """Return a dialogue up to the end of a turn of calls, for a template that can't end with one."""
        answers = [{"role": "tool", "content": "-"} for _ in message["tool_calls"]]
        text = self._render([USER_MESSAGE, message, *answers], thinks=thinks, open_turn=False)
        turn = strip_common_prefix(text, self._openings[thinks])
        ends = [turn.index(end) + len(end) for end in self.format.ends if end in turn]
        return text[: len(text) - len(turn) + min(ends)] if ends else text

    def _opened(self, text: str, *, opened: bool) -> str:
        """Return a turn's text with the opening of its thinking, unless the context has opened it."""
        tags = self.format.tags
        if tags is None or tags.closing not in text:
            return text
        begins = text.lstrip().startswith(tags.opening)
        if opened and begins:
            return text.lstrip().removeprefix(tags.opening).lstrip("\n")
        return text if opened or begins else f"{tags.opening}\n{text}"

    def _behind(self, opening: str, whole: str, message: Message, *, thinks: bool, is_context: bool) -> str:
        """Return the text after the opening of a turn, its reasoning included."""
        tags, reasoning = self.format.tags, message.get(REASONING) or ""
        opened = thinks and tags is not None and opening.rstrip().endswith(tags.opening)
        left_out = not thinks and tags is not None and opening.rstrip().endswith(tags.closing)
        before = _text_before_thinking(opening, tags) if tags is not None and (opened or left_out) else opening
        if is_context and opened and not reasoning and tags is not None and whole.startswith(before):
            answer = whole.removeprefix(opening if whole.startswith(opening) else before)
            return self.format.closing + (answer.partition(tags.closing)[2] or answer).lstrip()
        missing = opened and not reasoning and tags is not None and tags.closing not in whole.removeprefix(opening)
        if not whole.startswith(before) or missing or (opened and not reasoning and not whole.startswith(opening)):
            raise ValueError(
                f"the chat template opens a turn with {opening[-40:]!r} but renders a message as {whole[-80:]!r}; "
                f"a demonstration can't follow the opening; check whether its reasoning is missing"
            )
        if whole.startswith(opening):
            text_after = whole.removeprefix(opening)
        else:
            text_after = whole.removeprefix(before)
            text_after = text_after.removeprefix(tags.opening).lstrip("\n") if tags is not None else text_after
        if not thinks or tags is None or not reasoning:
            return text_after
        empty = text_after.lstrip().removeprefix(tags.opening).lstrip()
        if empty.startswith(tags.closing):
            text_after = empty.removeprefix(tags.closing)
        if tags.closing in text_after:
            return text_after
        partial = "" if opened else f"{tags.opening}\n"
        return partial + self._escaper.text(reasoning) + self.format.closing + text_after.lstrip()

    @property
    def can_skip_thinking(self) -> bool:
        """Whether turns without thinking are possible: the model does not think, or its template can switch it off."""
        return self.format.tags is None or self._render([USER_MESSAGE], thinks=True) != self._render(
            [USER_MESSAGE], thinks=False
        )

    def check_modes(self) -> None:
        """Raise `ValueError` if the chat template can't switch a model's thinking off."""
        if not self.can_skip_thinking:
            raise ValueError(
                "the chat template can't switch thinking off: enable_thinking, thinking and /no_think do not change the "
                "opening of a turn; set no_thinking=0 (rl.thinking, sft.reasoning.thinking), eval.no_thinking=false and "
                "envs.*.thinking=true, or use a chat template that can"
            )

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without the end of the turn. Tags of thinking and tool calls stay."""
        kept = [token for token in ids if token not in self._end_ids]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def dialogue_text(self, task: Task, reply: Sequence[Message]) -> str:
        """Return the template's text of a whole dialogue and the opening of the next turn."""
        return self._render([*task.messages, *reply], tools=task.tools, thinks=task.thinks)

    def drops(self, part: str) -> bool:
        """Return whether the chat template silently drops a part of a conversation, one of `PARTS`."""
        if part not in self._dropped:
            messages, tools = PARTS[part]
            try:
                self._dropped[part] = TEXT_MARK not in self._render(
                    messages, tools=tools, thinks=False, open_turn=False
                )
            except ValueError:  # an error is not silent
                self._dropped[part] = False
        return self._dropped[part]

    def breaks_tags(self, messages: Sequence[Message]) -> bool:
        """Return whether messages contain tags of the chat template, which rendering breaks."""
        given = list(messages)
        return bool(self._escaper.messages(given) != given)

    def _render(
        self,
        messages: Sequence[Message],
        *,
        thinks: bool,
        tools: Sequence[Tool] = (),
        open_turn: bool = True,
    ) -> str:
        with_mode = set_mode(messages, self.format.think if thinks else self.format.no_think)
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    self._escaper.messages(prepare_messages(with_mode, self.format)),
                    tools=self._escaper.data(tools) or None,
                    add_generation_prompt=open_turn,
                    **thinking_variables(thinks=thinks),
                    tokenize=False,
                )
            )
        except (TemplateError, TypeError) as error:
            roles = [message["role"] for message in messages]
            text = f"the chat template can't render messages of the roles {roles}: {error}"
            if "system" in roles and render(self._tokenizer, PARTS["system"][0]) is None:
                raise TemplateRefusal(f"{text}; {WITHOUT_SYSTEM}") from error
            raise ValueError(text) from error

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def with_notice(messages: Sequence[Message], notice: str) -> list[Message]:
    """Return the messages with a notice at the end of the last user message, or else of the last message.

    The content may be text or a list of parts.
    """
    if not notice:
        return list(messages)
    of_user = (number for number, message in enumerate(messages) if message.get("role") == "user")
    last = max(of_user, default=len(messages) - 1)
    return [*messages[:last], with_line(messages[last], notice), *messages[last + 1 :]]


def _text_before_thinking(opening: str, tags: Tags) -> str:
    """Return the opening of a turn without the thinking tags at its end."""
    ended = opening.rstrip().endswith(tags.closing)
    before = opening[: opening.rindex(tags.closing)] if ended else opening
    return before[: before.rindex(tags.opening)] if before.rstrip().endswith(tags.opening) else before
