"""What evaluation prompts have in common with what is trained on: whole prompts, and runs of words.

Words are lower-cased and without punctuation, and the runs have 13 of them, as in Brown et al., "Language Models are Few-Shot
Learners", 2020, appendix C. Runs that more than `COMMON` prompts of either side have are the wording of a template and do not
count.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from envs.core.task import Message

DropOverlap = Literal["none", "exact", "ngrams"]
"""Which training prompts are left out: none, those that are an evaluation prompt, or those too that share a run of words."""
NGRAM = 13
COMMON = 10
WORD = re.compile(r"\w+")


def prompt_words(messages: Iterable[Message]) -> list[str]:
    """Return the words of what the user says in a prompt, normalised."""
    said = (message.get("content") for message in messages if message.get("role") == "user")
    return [word for text in said if isinstance(text, str) for word in WORD.findall(text.lower())]


def ngrams(words: list[str]) -> set[int]:
    """Return the runs of `NGRAM` words as hashes, which hold in this process only."""
    return {hash(tuple(words[start : start + NGRAM])) for start in range(len(words) - NGRAM + 1)}


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


class OverlapIndex:
    """Evaluation prompts, to which training prompts are compared one after the other."""

    def __init__(self, prompts: Iterable[tuple[str, list[str]]]) -> None:
        """Take the key and the words of each evaluation prompt."""
        self._exact: dict[int, list[str]] = {}
        self._runs: dict[str, set[int]] = {}
        had: Counter[int] = Counter()
        for key, words in prompts:
            self._exact.setdefault(hash(tuple(words)), []).append(key)
            self._runs[key] = ngrams(words)
            had.update(self._runs[key])
        self._known = {run for run, count in had.items() if count <= COMMON}
        self._seen: Counter[int] = Counter()
        self._met: set[int] = set()
        self._training = 0

    def compare(self, words: list[str]) -> None:
        """Count what a training prompt has in common with the evaluation prompts."""
        self._training += 1
        self._seen.update(ngrams(words) & self._known)
        if (whole := hash(tuple(words))) in self._exact:
            self._met.add(whole)

    def result(self, *, all_compared: bool = True) -> Overlap:
        """Return what was found in the training prompts compared so far."""
        counted = {run for run, count in self._seen.items() if count <= COMMON}
        own = {key: runs & self._known for key, runs in self._runs.items()}
        shares = {key: len(runs & counted) / len(runs) for key, runs in own.items() if runs}
        return Overlap(
            prompts=len(self._runs),
            long=sum(bool(runs) for runs in self._runs.values()),
            training=self._training,
            all_compared=all_compared,
            exact=tuple(key for whole in self._exact if whole in self._met for key in self._exact[whole]),
            shared=tuple(key for key, share in shares.items() if share),
            mean_share=sum(shares.values()) / len(shares) if shares else 0.0,
        )

    def overlaps(self, words: list[str], by: DropOverlap) -> bool:
        """Return whether a training prompt is to be left out; by ngrams, once all were compared."""
        if by == "none":
            return False
        if hash(tuple(words)) in self._exact:
            return True
        counted = (run for run in ngrams(words) & self._known if self._seen[run] <= COMMON)
        return by == "ngrams" and any(True for _ in counted)
