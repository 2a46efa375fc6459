"""A round trip through a model's format: reference turns are rendered, parsed and rendered again, and must stay equal.

The dialogue has a system text, reasoning, two calls, their answers, an answer, and another turn. Each appended part must
equal the template's text at that place. Earlier parts may differ, with a note: many templates drop earlier reasoning after
a new user message. Episodes keep it, because sampled tokens never change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Message, Task, Tool
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.core.turn_text import BadCall, Call, ParsedTurn, call_message
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.formats.messages import PROBE_CALLS, PROBE_TOOLS, REASONING, one_call_a_turn

OTHER_TEMPLATE = "set model.chat_template to another template"
KNOWN = "docs/models.md lists the formats of tool calls; declare another one with model.tool_calls"


ASKING: Message = {
    "role": "assistant",
    REASONING: "look both up\n\nfirst",
    "content": "",
    "tool_calls": [call_message(name, arguments) for name, arguments in PROBE_CALLS],
}
TOLD: tuple[Message, ...] = ({"role": "tool", "content": "17"}, {"role": "tool", "content": "none"})
ANSWERS: tuple[Message, ...] = (
    {"role": "assistant", REASONING: "both are there", "content": "It is \\boxed{17}."},
    {"role": "user", "content": "And once more?"},
    {"role": "assistant", REASONING: "the same", "content": "Still \\boxed{17}."},
)
SYSTEM: Message = {"role": "system", "content": "Be brief."}
USER: Message = {"role": "user", "content": "What are they?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The features of a model's format that a run needs."""

    tools: bool = False
    system: bool = False
    thinking: bool = True
    """Whether some tasks use thinking."""
    no_thinking: bool = False
    """Whether some tasks switch thinking off."""


def check_round_trip(tokenizer: PreTrainedTokenizerBase, needs: Needs) -> list[str]:
    """Return notes on a model's format.

    Raises `ValueError`, with a remedy, if a dialogue changes in the round trip.
    """
    renderer = Renderer(tokenizer)
    _require_parts(renderer, needs)
    notes = []
    if needs.tools and not renderer.format.parallel:
        notes.append(
            "the model's format allows one tool call per turn: parallel calls in demonstrations become consecutive turns"
        )
    modes = [thinks for thinks, needed in ((True, needs.thinking), (False, needs.no_thinking)) if needed]
    for thinks in modes:
        notes += [note for note in _Dialogue(renderer, needs, thinks=thinks).check() if note not in notes]
    return notes


def _require_parts(renderer: Renderer, needs: Needs) -> None:
    form = renderer.format
    if needs.tools and not form.reads_calls:
        raise ValueError(f"the environments have tools, but {form.no_calls}; {OTHER_TEMPLATE} ({KNOWN})")
    parts = (("tools", needs.tools), ("tool", needs.tools), ("system", needs.system))
    for part in (part for part, needed in parts if needed and renderer.drops(part)):
        raise ValueError(f"the chat template silently drops messages or schemas of the kind {part!r}; {OTHER_TEMPLATE}")


class _Dialogue:
    """The reference dialogue in one mode, built as an episode builds it."""

    def __init__(self, renderer: Renderer, needs: Needs, *, thinks: bool) -> None:
        self._renderer = renderer
        self._thinks = thinks
        first = [SYSTEM, USER] if needs.system else [USER]
        tools: tuple[Tool, ...] = PROBE_TOOLS if needs.tools else ()
        self._task = Task(messages=tuple(first), spec={}, tools=tools, thinking=UNLIMITED if thinks else OFF)
        reply = [ASKING, *TOLD, *ANSWERS] if needs.tools else list(ANSWERS)
        if not thinks:
            reply = [{key: value for key, value in message.items() if key != REASONING} for message in reply]
        self._reply = reply if renderer.format.parallel else one_call_a_turn(reply)

    def check(self) -> list[str]:
        """Return notes. Raises `ValueError` if a part changes."""
        renderer, notes = self._renderer, []
        context = ids = renderer.prompt_ids(self._task)
        waiting: list[Message] = []
        calls: tuple[Call | BadCall, ...] = ()
        sampled: tuple[int, ...] = ()
        for number, message in enumerate(self._reply):
            if message["role"] != "assistant":
                waiting.append(message)
                continue
            if waiting:
                context = renderer.observation_ids(waiting, thinks=self._thinks, calls=calls, after=sampled)
                notes += self._appended(ids, context, number)
                ids, waiting = (*ids, *context), []
            sampled, calls = self._turn(message, context)
            ids = (*ids, *sampled)
        return list(dict.fromkeys(notes))

    def _turn(self, message: Message, context: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Call | BadCall, ...]]:
        """Return the ids of a reference turn and its parsed calls. The parsed turn must be equal, and render to the same
        text.
        """
        renderer = self._renderer
        text = renderer.answer_text(message, thinks=self._thinks, context_ids=context)
        sampled = renderer.encode(text)
        if sampled[-1] not in renderer.format.end_ids:
            raise ValueError(
                f"the text of a turn ends with {text[-40:]!r}, which the tokenizer does not encode as an end of turn"
            )
        parsed = renderer.parse(renderer.text(sampled), self._task, context)
        wanted = tuple(
            Call(name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        )
        reasoning = (
            message[REASONING] if self._thinks and renderer.format.tags is not None and REASONING in message else None
        )
        same = (
            parsed.calls == wanted
            and parsed.content.strip() == message["content"]
            and (parsed.reasoning or None) == reasoning
        )
        if not (same and parsed.readable and parsed.well_formed):
            raise ValueError(
                f"the chat template writes a turn as {text!r}, which is parsed differently; {OTHER_TEMPLATE}"
            )
        again = renderer.answer_text(_message(parsed), thinks=self._thinks, context_ids=context)
        if again != text:
            raise ValueError(f"a turn is rendered as {text!r}, and after parsing as {again!r}; {OTHER_TEMPLATE}")
        return sampled, parsed.calls

    def _appended(self, ids: Sequence[int], context: Sequence[int], number: int) -> list[str]:
        """Compare the appended context of a turn with the template's text."""
        renderer = self._renderer
        whole = renderer.dialogue_text(self._task, self._reply[:number])
        appended, before = renderer.decode(context), renderer.decode(ids)
        if not whole.endswith(appended):
            raise ValueError(
                f"in a whole dialogue the chat template writes {whole[-len(appended) :]!r}, but for the new "
                f"part alone {appended!r}; {OTHER_TEMPLATE}"
            )
        if whole == before + appended:
            return []
        return [
            "the chat template rewrites earlier turns of a longer dialogue (mostly, it drops their reasoning); "
            "here they stay as sampled"
        ]


def _message(parsed: ParsedTurn) -> Message:
    calls = [call_message(call.name, call.arguments) for call in parsed.calls if isinstance(call, Call)]
    message: Message = {"role": "assistant", "content": parsed.content.strip()}
    if parsed.reasoning:
        message[REASONING] = parsed.reasoning
    return {**message, "tool_calls": calls} if calls else message
