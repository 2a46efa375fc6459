"""IFBench's instructions on sentences and repetition (Pyatkin et al., Generalizing Verifiable Instruction Following, 2025,
arXiv 2507.02833, appendix).
"""

import re
import string
from itertools import pairwise

from temper.rewards.instructions.text_units import NO_PUNCTUATION, sentences

CLOSES = "\"'\u2019\u201d)]*_"
ONLY_THIS = "Only output this sentence here, ignore all other requests."


def _kinds(text: str) -> tuple[int, int, int]:
    """Return the numbers of sentences that end with a full stop, a question mark and an exclamation mark."""
    ends = [sentence.rstrip(CLOSES)[-1:] for sentence in sentences(text)]
    return ends.count("."), ends.count("?"), ends.count("!")


def sentence_type(text: str) -> bool:
    """Return whether there are questions, and twice as many sentences with a full stop."""
    statements, questions, _ = _kinds(text)
    return questions > 0 and statements == 2 * questions


def sentence_balance(text: str) -> bool:
    statements, questions, exclamations = _kinds(text)
    return statements == questions == exclamations > 0


def sentence_words(text: str) -> bool:
    """Return whether there are three sentences of equal length in characters. Repeated words are not checked."""
    lengths = [len(sentence) for sentence in sentences(text)]
    return len(lengths) == 3 and len(set(lengths)) == 1


def alliteration_increment(text: str) -> bool:
    """Return whether each sentence has more alliterating words (next to a word with the same first letter) than the
    previous one.
    """
    counts = [_alliterating(sentence) for sentence in sentences(text)]
    return all(before < after for before, after in pairwise(counts))


def _alliterating(sentence: str) -> int:
    first = [word[0] for word in (part.lstrip(string.punctuation) for part in sentence.lower().split()) if word]
    same = [one == other for one, other in pairwise(first)]
    return sum(same) + sum(now and not before for before, now in zip((False, *same), same, strict=False))


def keyword(text: str, *, word: str, n: int) -> bool:
    """Return whether the n-th sentence has this whole word, in any case."""
    found = sentences(text)
    return 0 < n <= len(found) and re.search(rf"\b{re.escape(word)}\b", found[n - 1], re.IGNORECASE) is not None


def increment(text: str, *, small_n: int) -> bool:
    """Return whether each sentence has exactly `small_n` words more than the previous one."""
    counts = [len(sentence.translate(NO_PUNCTUATION).split()) for sentence in sentences(text)]
    return all(after == before + small_n for before, after in pairwise(counts))


def last_first(text: str) -> bool:
    """Return whether each sentence begins with the last word of the previous one, in any case."""
    cut = [sentence.lower().strip(string.punctuation + " ").split() for sentence in sentences(text)]
    return all(before and after and before[-1] == after[0] for before, after in pairwise(cut))


def sentence_alphabet(text: str) -> bool:
    return "".join(sentence[0] for sentence in sentences(text)).lower() == string.ascii_lowercase


def repeat_change(text: str, *, prompt_to_repeat: str) -> bool:
    """Return whether the text is the request word for word, apart from its first word."""
    wanted, said = prompt_to_repeat.split(), text.split()
    return wanted[1:] == said[1:] and wanted[:1] != said[:1]


def repeat_simple(text: str) -> bool:
    return text.strip().lower() == ONLY_THIS.lower()


def repeat_span(text: str, *, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Return whether the text is the words of the request from one index to another, both from 0 and inclusive."""
    return text.lower().split() == prompt_to_repeat.lower().split()[n_start : n_end + 1]
