"""The endpoint of agents against NeMo-Gym's token capture and against renderers, on random episodes with branches.

NeMo-Gym finds by the messages which call a request continues, and builds the sequences and masks of all branches. renderers
writes the prompt of each request: after the sampled tokens of the call before, or anew. A naive search finds the longest turn
whose text begins a prompt.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest
from judges.packages import NEMO_GYM, RENDERERS, installed
from judges.test_renderers import FAMILIES, class_of, known_tokenizer, package  # noqa: F401
from judges.wandering import MERGES, MODEL, Asked, OddModel
from support.scripted_endpoint import ScriptedEndpoint
from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.learner.batches.samples import samples_from_groups
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.escaping import Escaper
from temper.rollout.trajectory import Group, Ticket, Trajectory, WeightVersion

EPISODES = 6
TASK = Task(key="t", messages=({"role": "user", "content": "2+2=?"},), spec={"answer": "4"})
TOOLS, THOUGHT = "The request offers other tools", "The template or the client leaves out a thought"
FORM = "The template writes a cut or oddly formatted turn in another form"
EARLIER = "After a rewritten message Temper continues the turns before it, NeMo-Gym none"
REPEATED = "Of the answers to a repeated request NeMo-Gym trains one"
ANEW = "After a rewritten message renderers encodes a turn anew"
NORMAL_FORMS: dict[str, Callable[[str], str]] = {
    ANEW: str,
    "Without thinking renderers keeps empty thoughts": lambda text: text.replace("<think>\n\n</think>\n\n", ""),
    "After a cut turn of GLM renderers adds an end": lambda text: text.replace("<|endoftext|>", ""),
    "Gemma's template adds a blank to the parts in which vLLM gives it a system text": lambda text: "".join(
        text.split()
    ),
}
"""Causes of another prompt, each with a form in which both are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An episode: its requests, and the trajectory that Temper has made of them."""

    family: str
    tokenizer: PreTrainedTokenizerBase
    thinks: bool
    thought: str
    """A pattern of the family's thoughts."""
    asked: list[Asked]
    trajectory: Trajectory

    def text(self, ids: Any) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def whole(self, at: int) -> tuple[int, ...]:
        """All ids up to the end of a turn."""
        return (*self.asked[at].prompt, *self.asked[at].sampled)

    def why_not(self, before: int, at: int) -> str:
        """Why a request does not begin with the text of the turn that its messages continue."""
        prompt, turn = (re.sub(self.thought, "", self.text(ids)) for ids in (self.asked[at].prompt, self.whole(before)))
        if self.asked[before].tools != self.asked[at].tools:
            return TOOLS
        assert prompt.startswith(turn) or self.asked[before].odd, (self.family, prompt, turn)
        return THOUGHT if prompt.startswith(turn) else FORM


def played(family: str, place: Any) -> Iterator[Played]:
    tokenizer = known_tokenizer(family, merges=MERGES)
    renderer, model = Renderer(tokenizer), OddModel(tokenizer)
    MODEL.append(model)
    tags = renderer.format.tags
    thought = "(?!)" if tags is None else rf"(?s){re.escape(tags.opening)}.*?{re.escape(tags.closing)}\s*"
    with closing(ScriptedEndpoint(place, tokenizer, model)) as endpoint:
        for number in range(EPISODES):
            thinks = tags is not None and (number % 2 == 0 or not renderer.can_skip_thinking)
            model.begin(f"{family} {number}", thinks=thinks)
            task = replace(TASK, thinking=UNLIMITED if thinks else OFF)
            trajectory = endpoint.play(task, "judges.wandering.wander")
            assert trajectory.failure is None, trajectory.failure
            yield Played(
                family=family,
                tokenizer=tokenizer,
                thinks=thinks,
                thought=thought,
                asked=model.asked,
                trajectory=trajectory,
            )


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> list[Played]:
    return [one for family in FAMILIES for one in played(family, tmp_path_factory.mktemp(family))]


@pytest.fixture(scope="module")
def nemo() -> Any:
    sys.path.append(str(installed(*NEMO_GYM)))
    from nemo_gym import token_id_capture

    return token_id_capture


def record(record_property: Any, version: str, passed: str, causes: Counter[str]) -> None:
    record_property("version", version.split("==")[1])
    record_property("passed", passed)
    record_property("differs", causes.total())
    record_property("why", ". ".join(f"{cause} ({count})" for cause, count in causes.most_common()))


def continued(nemo: Any, asked: list[Asked]) -> list[tuple[int, Any]]:
    """The call that each request continues by its messages, -1 for none, and NeMo-Gym's record of the call."""
    from nemo_gym.token_id_capture.records import response_to_output_items

    lineage, found = nemo.RolloutLineage(), []
    for number, call in enumerate(asked):
        match = lineage.resolve(call.messages).match
        entry = nemo.TokenEntry(
            rollout_id="one",
            model_call_id=f"{number:03}",
            prompt_token_ids=call.prompt,
            generation_token_ids=call.sampled,
            generation_log_probs=[0.0] * len(call.sampled),
            output_items=response_to_output_items(call.reply),
        )
        found.append((int(match.model_call_id) if match else -1, entry))
        lineage.add_entry(nemo.stamp_continuation(nemo.stamp_lineage(entry, None), call.messages))
    return found


def sequences_of(
    nemo: Any, entries: list[Any], parents: tuple[int, ...]
) -> dict[tuple[int, ...], list[tuple[int, bool]]]:
    """NeMo-Gym's sequence for each branch: ids, and whether each was sampled. It verifies the parents."""
    status = nemo.ParentResolutionStatus
    for entry, parent in zip(entries, parents, strict=True):
        known, name = (status.ROOT, None) if parent < 0 else (status.RESOLVED, f"{parent:03}")
        nemo.stamp_lineage(entry, name, parent_resolution=known)
    built = nemo.prefix_merging(entries)
    assert not built.notes.parent_link_failures
    made = {}
    for chain in built.chains:
        ids = [(token, False) for token in chain.root_prompt]
        for link in chain.links:
            ids += [(token, False) for token in link.interstitial]
            ids += [(token, True) for token in link.entry.generation_token_ids]
        made[tuple(int(link.entry.model_call_id) for link in chain.links)] = ids
    return made


@pytest.mark.judges(suite="NeMo-Gym", run="requests of agents: parents, sequences and masks of branches")
def test_nemo_gym_builds_the_same_sequences(nemo: Any, episodes: list[Played], record_property: Any) -> None:
    requests, sequences, causes = 0, 0, Counter[str]()
    for one in episodes:
        parents, asked, trajectory = one.trajectory.parents, one.asked, one.trajectory
        texts = [one.text(one.whole(at)) for at in range(len(asked))]
        records = continued(nemo, asked)
        for at, (by_messages, _) in enumerate(records):
            prompt = one.text(asked[at].prompt)
            begun = [before for before in range(at) if prompt.startswith(texts[before]) and prompt != texts[before]]
            longest = max((len(one.whole(before)) for before in begun), default=0)
            assert longest == (len(one.whole(parents[at])) if parents[at] >= 0 else 0)
            assert by_messages == parents[at] or by_messages not in begun
            requests += by_messages == parents[at]
            if by_messages != parents[at]:
                causes[one.why_not(by_messages, at) if by_messages >= 0 else EARLIER] += 1
        group = Group(ticket=Ticket(number=1, task=TASK, admitted=WeightVersion(step=0)), trajectories=(trajectory,))
        samples = samples_from_groups([group], advantage="dr_grpo")
        assert sum(sample.trained_tokens for sample in samples) == sum(len(call.sampled) for call in asked)
        built = sequences_of(nemo, [entry for _, entry in records], parents)
        seen = set[int]()
        for branch, sample in zip(trajectory.branches, samples, strict=True):
            wanted = built.get(tuple(branch))
            sequences += wanted is not None
            if wanted is None:
                assert any(call.prompt == asked[at].prompt for at in branch for call in asked if call is not asked[at])
                causes[REPEATED] += 1
            else:
                again = [range(len(asked[at].prompt), len(one.whole(at))) for at in branch if at in seen]
                once = [
                    (ids, drawn and not any(at in part for part in again)) for at, (ids, drawn) in enumerate(wanted)
                ]
                assert once == list(zip(sample.ids.tolist(), sample.trained_T.tolist(), strict=True))
            seen.update(branch)
    record(record_property, NEMO_GYM[0], f"{requests:,} requests, {sequences:,} sequences", causes)


def follows(call: Asked, messages: list[Message]) -> bool:
    """Whether these messages continue a call."""
    count, said = len(call.messages), call.reply["choices"][0]["message"]
    after = messages[count:][:1]
    same = all((one.get(key) or None) == (said.get(key) or None) for one in after for key in ("content", "tool_calls"))
    return bool(after) and messages[:count] == call.messages and same


def in_its_form(message: Message) -> Message:
    """A message of a client as renderers takes it."""
    moved = {"reasoning_content": message["reasoning"]} if "reasoning" in message else {}
    return {"content": ""} | {key: value for key, value in message.items() if key != "reasoning"} | moved


@pytest.mark.judges(suite="renderers", run="requests of agents: prompts")
def test_renderers_writes_the_same_prompts(package: Any, episodes: list[Played], record_property: Any) -> None:  # noqa: F811
    agreed, causes = 0, Counter[str]()
    for one in episodes:
        other = class_of(package, one.family, one.tokenizer, enable_thinking=one.thinks)
        escaper = Escaper(one.tokenizer)
        for at, call in enumerate(one.asked):
            parent, tools = one.trajectory.parents[at], escaper.data(call.tools) or None
            messages = escaper.messages([in_its_form(message) for message in call.messages])
            before = [number for number in range(at) if follows(one.asked[number], call.messages)]
            number = parent if parent in before else before[-1] if before else -1
            bridged = None
            if before:
                last = one.asked[number]
                new = messages[len(last.messages) + 1 :]
                bridged = other.bridge_to_next_turn(list(last.prompt), list(last.sampled), new, tools=tools)
            if bridged is not None and number == parent:
                wanted = bridged.token_ids
            else:
                wanted = other.render_ids(messages, tools=tools, add_generation_prompt=True)
                if bridged is not None:
                    causes[one.why_not(number, at)] += 1
            here, there = one.text(call.prompt), one.text(wanted)
            if tuple(wanted) == call.prompt:
                agreed += 1
            else:
                cause = next((name for name, form in NORMAL_FORMS.items() if form(here) == form(there)), None)
                assert cause is not None, (one.family, here, there)
                causes[cause] += 1
    record(record_property, RENDERERS[0], f"{agreed:,}", causes)
