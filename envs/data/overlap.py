"""Overlap between evaluation prompts and training data: whole prompts, and runs of words.

Runs have 13 words in lower case without punctuation, as in Brown et al., "Language Models are Few-Shot Learners", 2020,
appendix C. Brown et al. ignore runs that are common in training documents. Here these count, since training may repeat one
question in many wordings. A run that is common in evaluation prompts is the wording of a template.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from temper.envs.core.task import Message
from temper.envs.data.config import DropOverlap

"""Training prompts to drop: none, those equal to an evaluation prompt, or also those that share a run of words."""
NGRAM = 13
COMMON = 10
"""A run in more evaluation prompts than this, or in more than half of them, is the wording of a template and is ignored."""
WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptText:
    """The user's text of a prompt, normalised for comparison."""

    text: str
    """In lower case with single spaces. Empty, and equal to nothing, if the user's text has no words."""
    words: int
    runs: frozenset[int]
    """The runs of `NGRAM` words as hashes, valid in this process only."""


def prompt_text(messages: Iterable[Message]) -> PromptText:
    """Return the normalised user's text of a prompt."""
    contents = (message.get("content") for message in messages if message.get("role") == "user")
    text = " ".join(" ".join(text for content in contents for text in _texts(content)).lower().split())
    words = WORD.findall(text)
    runs = (hash(tuple(words[start : start + NGRAM])) for start in range(len(words) - NGRAM + 1))
    return PromptText(text=text, words=len(words), runs=frozenset(runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The overlap of an evaluation set with training prompts."""

    prompts: int
    """Evaluation prompts."""
    long: int
    """Prompts of at least `NGRAM` words, which can share a run."""
    training: int
    """Training prompts compared."""
    all_compared: bool
    """Whether all were compared. If not, the word limit was reached."""
    exact: tuple[str, ...]
    """Keys of the evaluation prompts that are also training prompts, once normalised."""
    shared: tuple[str, ...]
    """Keys of the evaluation prompts that share a run of words with a training prompt."""
    silent: int = 0
    """Evaluation prompts without words of the user, which can't be compared."""


class OverlapIndex:
    """Evaluation prompts, compared with one training prompt at a time."""

    def __init__(self, prompts: Iterable[tuple[str, PromptText]]) -> None:
        self._prompts = list(prompts)
        self._eval_texts = {prompt.text for _, prompt in self._prompts if prompt.text}
        had = Counter(run for _, prompt in self._prompts for run in prompt.runs)
        most = max(1, min(COMMON, len(self._prompts) // 2))
        self._runs = {run for run, count in had.items() if count <= most}
        self._met_texts: set[str] = set()
        self._met_runs: set[int] = set()
        self._training = 0

    def compare(self, prompt: PromptText) -> None:
        """Count the overlap of a training prompt with the evaluation prompts."""
        self._training += 1
        self._met_runs |= prompt.runs & self._runs
        if prompt.text in self._eval_texts:
            self._met_texts.add(prompt.text)

    def result(self, *, all_compared: bool = True) -> Overlap:
        """Return the overlap with the training prompts compared so far."""
        runs = [(key, prompt.runs & self._runs) for key, prompt in self._prompts]
        return Overlap(
            prompts=len(self._prompts),
            long=sum(bool(prompt.runs) for _, prompt in self._prompts),
            training=self._training,
            all_compared=all_compared,
            exact=tuple(key for key, prompt in self._prompts if prompt.text in self._met_texts),
            shared=tuple(key for key, own in runs if own & self._met_runs),
            silent=sum(not prompt.text for _, prompt in self._prompts),
        )

    def has_overlap(self, prompt: PromptText, by: DropOverlap) -> bool:
        """Return whether to drop a training prompt."""
        if by == "none":
            return False
        return prompt.text in self._eval_texts or (by == "ngrams" and not prompt.runs.isdisjoint(self._runs))


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list | tuple) else ()
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
