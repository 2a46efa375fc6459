"""IFEval's counting instructions: keywords, letters, words, sentences, paragraphs (Zhou et al., Instruction-Following
Evaluation for Large Language Models, 2023, arXiv 2311.07911, table 1). Edge cases follow its published checker.
"""

import re

from temper.rewards.instructions.text_units import Relation, is_in_relation, sentences, words

FIRST_WORD = re.compile(r"'*\"*([^.,?!'\"]*)")
CAPITAL_TOKEN = re.compile(r"\w+(?:[-./]\w+)*")


def existence(text: str, *, keywords: list[str]) -> bool:
    """Return whether all keywords occur, in any case, also inside longer words."""
    return all(keyword.lower() in text.lower() for keyword in keywords)


def frequency(text: str, *, keyword: str, frequency: int, relation: Relation) -> bool:
    """Compare the number of occurrences of a keyword, also inside longer words, without overlap."""
    return is_in_relation(text.lower().count(keyword.strip().lower()), frequency, relation)


def forbidden_words(text: str, *, forbidden_words: list[str]) -> bool:
    """Return whether none of the words occurs as a whole word, in any case."""
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(text: str, *, letter: str, let_frequency: int, let_relation: Relation) -> bool:
    return is_in_relation(text.lower().count(letter.lower()), let_frequency, let_relation)


def number_words(text: str, *, num_words: int, relation: Relation) -> bool:
    return is_in_relation(len(words(text)), num_words, relation)


def number_sentences(text: str, *, num_sentences: int, relation: Relation) -> bool:
    return is_in_relation(len(sentences(text)), num_sentences, relation)


def number_paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """Return whether `***` divides the text into so many paragraphs. Only the first and the last part may be empty."""
    first, *inner = text.split("***")
    last = inner.pop() if inner else first
    if not all(part.strip() for part in inner):
        return False
    ends = bool(first.strip()) + bool(last.strip()) if "***" in text else bool(text.strip())
    return len(inner) + ends == num_paragraphs


def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Return whether blank lines divide the text into so many paragraphs, and the n-th begins with this word.

    The word ends before the first of `. , ? ! ' "`. Leading quotes and case are ignored. Extra blank lines take the place
    of a paragraph without being counted as one.
    """
    parts = text.split("\n\n")
    count = sum(bool(part.strip()) for part in parts)
    if count != num_paragraphs or not 1 <= nth_paragraph <= count or not parts[nth_paragraph - 1].strip():
        return False
    begins = FIRST_WORD.match(parts[nth_paragraph - 1].split()[0])
    return begins is not None and begins[1].lower() == first_word.lower()


def capital_word_frequency(text: str, *, capital_frequency: int, capital_relation: Relation) -> bool:
    """Compare the number of words in capitals: `I`, `COVID-19` and `U.S.` are one each, `DON'T` is two.

    The published checker uses NLTK tokens, which differ on rare forms such as `A*B`.
    """
    count = sum(token.isupper() for token in CAPITAL_TOKEN.findall(text))
    return is_in_relation(count, capital_frequency, capital_relation)
