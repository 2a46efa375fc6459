"""Pairs of answers as the rows of a file have them: the same prompt, an answer that is preferred, and another one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envs.core.env_ref import CHAT
from envs.core.task import Message, Task
from envs.core.thinking_mode import OFF, UNLIMITED
from envs.data.config import DataConfig, OnError
from learner.batches.pairs import Pair
from orchestrator.data.chat_data import Dialogue, DialogueTokenizer
from orchestrator.data.chat_messages import checked_messages, checked_tools, shown, spoken
from orchestrator.data.row_intake import RowIntake


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A row of a file: the same prompt with the answer that is preferred, and with the other one."""

    chosen: Dialogue
    rejected: Dialogue

    def pair(self, tokenizer: DialogueTokenizer) -> Pair:
        """Return the two as training samples."""
        return Pair(chosen=tokenizer.sample(self.chosen), rejected=tokenizer.sample(self.rejected))


class PreferenceFile:
    """Rows of data with two answers, shuffled anew in each epoch; `counts` says what became of them, but for streamed ones.

    Raises as `read_preferences`.
    """

    def __init__(self, data: DataConfig, intake: RowIntake, *, on_error: OnError, seed: str) -> None:
        self._row, self.counts = intake.shuffled(data, _parsed_by(intake), on_error=on_error, seed=seed)

    def preference(self, index: int) -> Preference:
        """Return the preference at a position, epoch after epoch."""
        return self._row(index)


def read_preferences(
    data: DataConfig, intake: RowIntake, *, on_error: OnError
) -> tuple[list[Preference], dict[str, int]]:
    """Read the rows of data, and count what became of them.

    Every row is tokenised once by `intake`. Raise `ValueError` with place and offending value for a row that can't be
    trained on where `on_error` is "raise", and where no row can.
    """
    return intake.read(data, _parsed_by(intake), on_error=on_error)


def _parsed_by(intake: RowIntake) -> Callable[[dict[str, Any], int], Preference]:
    def parse(row: dict[str, Any], number: int) -> Preference:
        preference = parse_preference(row, number, thoughts=intake.knows_thoughts)
        if intake.require_fits(preference.chosen) == intake.require_fits(preference.rejected):
            raise ValueError(f"`chosen` and `rejected` are the same tokens, {shown(row['chosen'])}")
        return preference

    return parse


def parse_preference(row: dict[str, Any], number: int, *, thoughts: bool = True) -> Preference:
    """Read one row: `{"messages": [...], "chosen": "text", "rejected": "text"}`, perhaps with `tools`.

    `thoughts` says whether the model knows the tags of a thought; else they are plain text.
    """
    messages = _prompt(row)
    chosen, rejected = (_answer(row, name, thoughts=thoughts) for name in ("chosen", "rejected"))
    if chosen == rejected:
        raise ValueError(f"`chosen` and `rejected` are the same answer, {shown(row['chosen'])}")
    thinks = {name: bool(said.get("reasoning_content")) for name, said in (("chosen", chosen), ("rejected", rejected))}
    if len(set(thinks.values())) > 1:
        have, lacks = sorted(thinks, key=lambda name: not thinks[name])
        raise ValueError(
            f"`{have}` has a thought and `{lacks}` has none, {shown(row[lacks])}; the two follow the same prompt, which "
            f"opens a thought or does not"
        )
    task = Task(
        env=CHAT,
        key=str(number),
        messages=messages,
        spec={},
        tools=checked_tools(row),
        thinking=UNLIMITED if thinks["chosen"] else OFF,
    )
    return Preference(chosen=Dialogue(task=task, reply=(chosen,)), rejected=Dialogue(task=task, reply=(rejected,)))


def _prompt(row: dict[str, Any]) -> tuple[Message, ...]:
    messages = checked_messages(row)
    if messages[-1]["role"] == "assistant":
        raise ValueError(f"`messages` is the prompt and must not end with the assistant's {shown(messages[-1])}")
    return tuple(messages)


def _answer(row: dict[str, Any], name: str, *, thoughts: bool) -> Message:
    """Return an answer as a message; what stands before the closing tag is its thought."""
    text = row.get(name)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"`{name}` must be an answer's text, not {shown(text)}")
    return spoken({"role": "assistant", "content": text}, thoughts=thoughts, name=f"`{name}`")
