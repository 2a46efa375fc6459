"""Temper's support of each model family, found by replaying reference turns through the family's chat template.

    PYTHONPATH=tests .venv/bin/python tests/support/family_findings.py

writes the table of docs/models.md anew.
"""

import functools
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from support.bound import bound
from support.model_families import tokenizer_of
from support.reference_engine import Family
from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED, Thinking, up_to
from temper.envs.core.turn_text import Call, call_message, parse_turn
from temper.envs.mathematics import arithmetic
from temper.envs.retail import reference, rows
from temper.envs.retail.env import with_folder
from temper.envs.tool_use import lookups
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.episodes.round_trip import Needs, check_round_trip
from temper.rollout.trajectory import Closed, Stop, Trajectory

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"
RETAIL = ROOT / ".." / "shared" / "data" / "tau_retail"
RETAIL_ROW = 12
NAMES = (
    *("nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning", "nemotron_nano_v2"),
    *("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8", "qwen3_vl"),
    *("llama3", "llama3_1", "llama3_2", "glm4moe", "gptoss", "gemma", "gemma3", "gemma4", "gemma4_v5"),
    *("deepseekv3", "deepseek_v3_1", "deepseek_r1_distill", "mistral", "phi3", "phi3_5", "cohere2"),
    *("lfm2", "lfm2_v2", "lfm2_2_5_v2", "muse_glimmer", "llava_next"),
)
"""The families of the table, by the names of their templates."""
HEAD = ("Template", "Thoughts", "Left out", "Budgets", "Tool calls", "Earlier turns", "Refused")
YES, NO = "yes", "no"
BUDGETS = tuple(up_to(tokens) for tokens in (0, 1, 3, 16))
"""In tokens of one byte each. Openings that models write themselves have up to 10 tokens, which no budget counts."""
QUOTED = re.compile(r"(?<!\w)(?P<quote>['\"]).{40,}(?P=quote)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the table."""

    name: str
    thoughts: str = NO
    left_out: str = "-"
    budgets: str = NO
    calls: str = NO
    earlier: str = "-"
    refused: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The line in Markdown."""
        cells = (self.name, self.thoughts, self.left_out, self.budgets, self.calls, self.earlier)
        parts = (one if one.startswith("all") else one.partition(":")[0] for one in self.refused)
        return _line((*cells, ", ".join(parts)))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def code(text: str) -> str:
    """Text as code in a table."""
    return "`" + text.replace("\n", "\\n").replace("|", "\\|") + "`"


def reason(error: ValueError) -> str:
    """The error message for a table, without the remedy and long quotations."""
    said = QUOTED.sub("...", str(error).partition("; ")[0])
    return said.replace("|", "\\|").replace("<", "&lt;").removesuffix(" ")


def find(name: str) -> Finding:
    """Roll out a family's episodes and report its features. Raises `AssertionError` if a reference turn is wrong."""
    tokenizer = tokenizer_of(name)
    try:
        family = Family(tokenizer)
        switched = _refusal(family.renderer.check_modes)
        needs, refused, notes = _carried(tokenizer, no_thinking=not switched)
    except ValueError as error:
        return Finding(name=name, refused=(f"all: {reason(error)}",))
    form, tags = family.renderer.format, family.tags
    modes: list[Thinking] = [UNLIMITED]
    if tags is None:
        refused.append(f"budgets: {_refusal(lambda: ThinkingTags(tokenizer))}")
    else:
        modes += BUDGETS
    if switched:
        refused.append(f"no_thinking: {switched}")
    else:
        modes.append(OFF)
    for mode in modes:
        _play_right(family, mode, tools=needs.tools)
    if needs.tools and RETAIL.is_dir():
        _play_shop(family)
    once = "several a turn" if form.parallel else "one a turn"
    return Finding(
        name=name,
        thoughts=NO if tags is None else f"{code(tags.tags.opening)} {code(tags.tags.closing)}",
        left_out="-" if tags is None else NO if switched else YES,
        budgets=NO if tags is None else YES,
        calls=f"{form.name}, {once}" if needs.tools else NO,
        earlier="rewritten" if any("rewrites earlier turns" in note for note in notes) else "the same",
        refused=tuple(refused),
    )


def _refusal(check: Callable[[], object]) -> str:
    """The reason of a check's refusal, or "" if it accepts."""
    try:
        check()
    except ValueError as error:
        return reason(error)
    return ""


def _carried(tokenizer: PreTrainedTokenizerBase, *, no_thinking: bool) -> tuple[Needs, list[str], list[str]]:
    """The supported round trip, largest first, with refusals and notes. `ValueError` if none is supported."""
    refused: list[str] = []
    for part, needs in (
        ("tools", Needs(tools=True, system=True)),
        ("a system text", Needs(system=True)),
        ("", Needs()),
    ):
        needed = replace(needs, no_thinking=no_thinking)
        try:
            return needed, refused, check_round_trip(tokenizer, needed)
        except ValueError as error:
            if not part:
                raise
            refused.append(f"{part}: {reason(error)}")
    raise AssertionError("the last of the needs returns or raises")


def _play_right(family: Family, mode: Thinking, *, tools: bool) -> None:
    """Roll out a generated task in this mode: two parallel look-ups and a calculation, or a sum for a family without tools."""
    generated, env = (lookups, "tool_use") if tools else (arithmetic, "math")
    made = (generated.generate(random.Random(seed), 2) for seed in range(100))
    task = replace(next(task for task in made if not tools or len(task.spec["keys"]) > 1), thinking=mode)
    said = generated.demonstrate(task)
    if mode.budget is not None:
        said = [{**one, "reasoning_content": "x" * 40} if one["role"] == "assistant" else one for one in said]
    played = family.play(bound(task, env), said)
    _require_right(played)
    if mode.budget is not None:
        thoughts = [turn.thinking for turn in played.turns if turn.thinking.closed is not Closed.NONE]
        assert thoughts, "no turn was thought about"
        assert {one.tokens for one in thoughts} == {mode.budget}, thoughts
        assert {one.closed for one in thoughts} <= {Closed.ABRUPT, Closed.LINE_END}, thoughts


def _play_shop(family: Family) -> None:
    """Roll out a real shop row with one call a turn, and with thinking if the family supports it."""
    reasoning = {} if family.tags is None else {"reasoning_content": "first this"}
    _require_right(family.play(shop_task(), [{**message, **reasoning} for message in shop_reference()]))


@functools.cache
def shop_task() -> Task:
    """The shop's row for the rollout."""
    line = (RETAIL / "tasks_train.jsonl").read_text(encoding="utf-8").splitlines()[RETAIL_ROW]
    return bound(rows.load(json.loads(line), folder=RETAIL), with_folder(RETAIL))


def shop_reference() -> list[Message]:
    """The reference turns of that row as messages."""
    messages: list[Message] = []
    for text in reference.reference(shop_task()):
        parsed = parse_turn(text, thinks=False)
        calls = [call_message(call.name, call.arguments) for call in parsed.calls if isinstance(call, Call)]
        said: Message = {"role": "assistant", "content": parsed.content.strip()}
        messages.append({**said, "tool_calls": calls} if calls else said)
    return messages


def _require_right(played: Trajectory) -> None:
    assert played.failure is None, played.failure
    assert [turn.faults for turn in played.turns] == [()] * len(played.turns), [turn.text for turn in played.turns]
    assert (played.reward, played.stop) == (1.0, Stop.ENV), played.score


def table(lines: Sequence[str]) -> str:
    """The table of the page."""
    return "\n".join((_line(HEAD), _line(["---"] * len(HEAD)), *lines))


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = page.index(_line(HEAD)), page.index("\n\n", page.index(_line(HEAD)))
    PAGE.write_text(page[:begin] + table([find(name).line for name in NAMES]) + page[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
