"""Messages to token ids, for any chat template: prompts, observations, and the turns of demonstrations.

Conversations are never rendered twice: each part is rendered once, when it is new, and appended. So the ids that the
engine sampled stay as they were, whatever the template would do to earlier turns.
"""

from collections.abc import Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from envs.core.task import Message, Task, Tool
from rollout.budget.config import ThoughtConfig
from rollout.escaping import Escaper

MARK = "temper-mark"
"""Stands for the text of the assistant where only what follows it is wanted."""


def _calling(name: str) -> Message:
    function = {"name": name, "arguments": {"key": "a"}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": "call00000", "function": function}],
    }


ASKED: Message = {"role": "user", "content": "-"}
TOLD: Message = {"role": "tool", "tool_call_id": "call00000", "name": "get", "content": MARK}
OFFERED: Tool = {"type": "function", "function": {"name": MARK, "parameters": {"type": "object", "properties": {}}}}
PARTS: dict[str, tuple[list[Message], list[Tool]]] = {
    "tools": ([ASKED], [OFFERED]),
    "tool_calls": ([ASKED, _calling(MARK)], []),
    "tool": ([ASKED, _calling("get"), TOLD], []),
    "system": ([{"role": "system", "content": MARK}, ASKED], []),
}
"""Parts of a conversation that a chat template may not know, each in messages and tools that show it."""


class Renderer:
    """Renders parts of a conversation with a tokenizer's chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, thought: ThoughtConfig | None = None) -> None:
        self._tokenizer = tokenizer
        self._thought = thought or ThoughtConfig()
        self._end = str(tokenizer.eos_token)
        self._end_id = tokenizer.eos_token_id  # looked up in a dict of names each time
        self._last: tuple[Task, tuple[Message, ...], tuple[int, ...]] | None = None
        self._openings: dict[bool, str] = {}
        self._dropped: dict[str, bool] = {}
        self._escaper = Escaper(tokenizer)

    def prompt_ids(self, task: Task, first: tuple[Message, ...] = ()) -> tuple[int, ...]:
        """Return the ids of a task's prompt: its mode at the end of the last user message, then the opening of the turn.

        `first` are messages that the environment adds to the task's own. The last prompt is remembered: the answers to one
        task ask for it one after the other.
        """
        last = self._last
        if last is None or (last[0], last[1]) != (task, first):
            messages = with_notice([*task.messages, *first], self._thought.notice(task.thinking))
            ids = self.encode(self._render(messages, tools=task.tools, thinks=task.thinks))
            last = self._last = (task, first, ids)
        return last[2]

    def observation_ids(
        self, messages: Sequence[Message], *, thinks: bool, after: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Return the ids that follow the end of the assistant's turn: the observation and the opening of the next turn.

        `after` are the ids of that turn: where a stop string ended it, the end of the turn is not among them, and comes first.
        """
        before: list[Message] = [{"role": "user", "content": "-"}, {"role": "assistant", "content": MARK}]
        text = self._render([*before, *messages], thinks=thinks)
        tail = text[text.index(MARK) + len(MARK) :]
        if not tail.startswith(self._end):
            raise ValueError(f"the chat template does not end an assistant turn with {self._end!r}, but {tail[:40]!r}")
        ended = not after or after[-1] == self._end_id
        return self.encode(tail.removeprefix(self._end) if ended else tail)

    def answer_text(self, message: Message, *, thinks: bool) -> str:
        """Return the text that a model would have to sample for `message`: thought, closing, answer, the end of the turn."""
        question: list[Message] = [{"role": "user", "content": "-"}]
        if thinks not in self._openings:
            self._openings[thinks] = self._render(question, thinks=thinks)
        opening = self._openings[thinks]
        given = dict(message) if thinks else {k: v for k, v in message.items() if k != "reasoning_content"}
        whole = self._render([*question, given], thinks=thinks, open_turn=False)
        if not whole.startswith(opening):
            raise ValueError(
                f"the chat template opens a turn with {opening[-40:]!r} but renders a message as {whole[-80:]!r}; "
                f"a demonstration can't follow the opening (is its thought missing?)"
            )
        sampled_text = whole.removeprefix(opening)
        end = sampled_text.rfind(self._end)
        if end < 0:
            raise ValueError(f"the chat template does not end an assistant turn with {self._end!r}: {sampled_text!r}")
        return sampled_text[: end + len(self._end)]

    def check_modes(self) -> None:
        """Raise `ValueError` where the chat template opens a turn alike with and without thinking."""
        question: list[Message] = [{"role": "user", "content": "-"}]
        if self._render(question, thinks=True) == self._render(question, thinks=False):
            raise ValueError(
                "the chat template ignores `enable_thinking`: turns with and without thinking begin alike, so thinking "
                "can't be switched off; set rl.thinking.no_thought=0, eval.no_thought=false and envs.*.thinking=true, or "
                "give the model a template that knows it"
            )

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without the end of the turn; tags of thoughts and tool calls stay visible."""
        kept = [token for token in ids if token != self._end_id]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

    def drops(self, part: str) -> bool:
        """Return whether the chat template leaves a part of a conversation out in silence: one of `PARTS`."""
        if part not in self._dropped:
            messages, tools = PARTS[part]
            try:
                self._dropped[part] = MARK not in self._render(messages, tools=tools, thinks=False, open_turn=False)
            except ValueError:  # not in silence
                self._dropped[part] = False
        return self._dropped[part]

    def breaks_tags(self, messages: Sequence[Message]) -> bool:
        """Return whether messages contain tags of the chat template, which are broken wherever they are rendered."""
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
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    self._escaper.messages(messages),
                    tools=self._escaper.data(tools) or None,
                    add_generation_prompt=open_turn,
                    enable_thinking=thinks,
                    tokenize=False,
                )
            )
        except (TemplateError, TypeError) as error:
            roles = [message["role"] for message in messages]
            raise ValueError(f"the chat template can't render messages of the roles {roles}: {error}") from error

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text as it stands."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def with_notice(messages: Sequence[Message], notice: str) -> list[Message]:
    """Return the messages with a notice at the end of the last one that the user wrote, as text or as a list of parts.

    Where the user wrote none, it stands at the end of the last message.
    """
    if not notice:
        return list(messages)
    of_user = (number for number, message in enumerate(messages) if message.get("role") == "user")
    last = max(of_user, default=len(messages) - 1)
    content = messages[last]["content"]
    noted = [*content, {"type": "text", "text": notice}] if isinstance(content, list) else f"{content}\n{notice}"
    return [*messages[:last], {**messages[last], "content": noted}, *messages[last + 1 :]]
