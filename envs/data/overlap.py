"""What evaluation prompts have in common with what is trained on: whole prompts, and runs of words.

Runs are of 13 words, lower-cased and without punctuation, as in Brown et al., "Language Models are Few-Shot Learners", 2020,
appendix C. There a run that many training documents have does not count; here it does, since many answers to one question, or
the question in many wordings, are what a model is trained on. What many evaluation prompts have is the wording of a template.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from temper.envs.core.task import Message

DropOverlap = Literal["none", "exact", "ngrams"]
"""Which training prompts are left out: none, those that are an evaluation prompt, or those too that share a run of words."""
NGRAM = 13
COMMON = 10
"""Runs that more evaluation prompts have, or more than half of them, are the wording of a template and do not count."""
WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptText:
    """What the user says in a prompt, as prompts are compared."""

    whole: str
    """In lower case, with single spaces, or empty if the user says nothing in words, and then equal to nothing."""
    words: int
    runs: frozenset[int]
    """The runs of `NGRAM` words as hashes, which hold in this process only."""


def prompt_text(messages: Iterable[Message]) -> PromptText:
    """Return what the user says in a prompt, normalised."""
    contents = (message.get("content") for message in messages if message.get("role") == "user")
    whole = " ".join(" ".join(text for content in contents for text in _texts(content)).lower().split())
    words = WORD.findall(whole)
    runs = (hash(tuple(words[start : start + NGRAM])) for start in range(len(words) - NGRAM + 1))
    return PromptText(whole=whole, words=len(words), runs=frozenset(runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How much of an evaluation set stands in training prompts."""

    prompts: int
    """Evaluation prompts."""
    long: int
    """Those of at least `NGRAM` words, which alone can share a run."""
    training: int
    """Training prompts that were compared."""
    all_compared: bool
    """Whether these were all; else the limit of words was reached."""
    exact: tuple[str, ...]
    """Keys of the evaluation prompts that are training prompts too, once normalised."""
    shared: tuple[str, ...]
    """Keys of those that share a run of words with a training prompt."""
    mean_share: float
    """Mean share of a prompt's runs that stand in training prompts, over the long ones."""
    silent: int = 0
    """Evaluation prompts in which the user says nothing in words: they can't be compared."""


class OverlapIndex:
    """Evaluation prompts, to which training prompts are compared one after the other."""

    def __init__(self, prompts: Iterable[tuple[str, PromptText]]) -> None:
        self._prompts = list(prompts)
        self._wholes = {prompt.whole for _, prompt in self._prompts if prompt.whole}
        had = Counter(run for _, prompt in self._prompts for run in prompt.runs)
        most = max(1, min(COMMON, len(self._prompts) // 2))
        self._runs = {run for run, count in had.items() if count <= most}
        self._met_wholes: set[str] = set()
        self._met_runs: set[int] = set()
        self._training = 0

    def compare(self, prompt: PromptText) -> None:
        """Note what a training prompt has in common with the evaluation prompts."""
        self._training += 1
        self._met_runs |= prompt.runs & self._runs
        if prompt.whole in self._wholes:
            self._met_wholes.add(prompt.whole)

    def result(self, *, all_compared: bool = True) -> Overlap:
        """Return what was found in the training prompts compared so far."""
        runs = [(key, prompt.runs & self._runs) for key, prompt in self._prompts]
        shares = [(key, len(own & self._met_runs) / len(own)) for key, own in runs if own]
        return Overlap(
            prompts=len(self._prompts),
            long=sum(bool(prompt.runs) for _, prompt in self._prompts),
            training=self._training,
            all_compared=all_compared,
            exact=tuple(key for key, prompt in self._prompts if prompt.whole in self._met_wholes),
            shared=tuple(key for key, share in shares if share),
            mean_share=sum(share for _, share in shares) / len(shares) if shares else 0.0,
            silent=sum(not prompt.whole for _, prompt in self._prompts),
        )

    def overlaps(self, prompt: PromptText, by: DropOverlap) -> bool:
        """Return whether a training prompt is to be left out."""
        if by == "none":
            return False
        return prompt.whole in self._wholes or (by == "ngrams" and not prompt.runs.isdisjoint(self._runs))


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list | tuple) else ()
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
