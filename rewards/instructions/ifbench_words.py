"""IFBench's instructions on words and counts (Pyatkin et al., Generalizing Verifiable Instruction Following, 2025, arXiv
2507.02833, appendix). Words are split at white space and stripped of ASCII punctuation, unless a docstring says otherwise.
"""

import re
import string
from collections import Counter
from itertools import pairwise

from temper.rewards.instructions.text_units import NO_PUNCTUATION, bare_words, sentences, words

CONJUNCTIONS = frozenset(("and", "but", "for", "nor", "or", "so", "yet"))
# fmt: off
PERSON_NAMES = (
    "Emma", "Liam", "Sophia", "Jackson", "Olivia", "Noah", "Ava", "Lucas", "Isabella", "Mason", "Mia", "Ethan", "Charlotte",
    "Alexander", "Amelia", "Benjamin", "Harper", "Leo", "Zoe", "Daniel", "Chloe", "Samuel", "Lily", "Matthew", "Grace", "Owen",
    "Abigail", "Gabriel", "Ella", "Jacob", "Scarlett", "Nathan", "Victoria", "Elijah", "Layla", "Nicholas", "Audrey", "David",
    "Hannah", "Christopher", "Penelope", "Thomas", "Nora", "Andrew", "Aria", "Joseph", "Claire", "Ryan", "Stella", "Jonathan",
)
PRONOUNS = frozenset((
    "i", "me", "my", "mine", "myself", "we", "us", "our", "ours", "ourselves", "you", "your", "yours", "yourself", "yourselves",
    "he", "him", "his", "himself", "she", "her", "hers", "herself", "it", "its", "itself", "they", "them", "their", "theirs",
    "themselves", "this", "that", "these", "those", "who", "whom", "whose", "which", "what", "whoever", "whomever", "whatever",
    "whichever", "anybody", "anyone", "anything", "everybody", "everyone", "everything", "nobody", "nothing", "somebody",
    "someone", "something", "each", "either", "neither", "both", "all", "some", "any", "none",
))
# fmt: on
JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
CLUSTER = re.compile("[b-df-hj-np-tv-z]{2}")
INTERROBANG = "\u203d"
PALINDROMES, SHORTEST_PALINDROME = 10, 5
TIMES = (1, 2, 3, 5, 7)


def word_count_range(text: str, *, min_words: int, max_words: int) -> bool:
    """Return whether the number of words (runs of letters, digits and underscores) is in the range, ends included."""
    return min_words <= len(words(text)) <= max_words


def unique_word_count(text: str, *, n: int) -> bool:
    """Return whether there are at least `n` different words, ignoring case."""
    return len({word.strip(string.punctuation) for word in text.lower().split()} - {""}) >= n


def conjunctions(text: str, *, small_n: int) -> bool:
    """Return whether at least `small_n` of the seven coordinating conjunctions occur."""
    return len({word.strip(string.punctuation) for word in text.lower().split()} & CONJUNCTIONS) >= small_n


def person_names(text: str, *, n: int) -> bool:
    """Return whether at least `n` of the listed names occur as whole capitalised words."""
    return len(set(words(text)) & set(PERSON_NAMES)) >= n


def pronouns(text: str, *, n: int) -> bool:
    """Return whether there are at least `n` pronouns, with repetition. `it's` has one and `she/her` two."""
    return sum(word in PRONOUNS for word in re.findall("[a-z]+", text.lower())) >= n


def numbers(text: str, *, n: int) -> bool:
    """Return whether there are exactly `n` runs of digits. ASCII punctuation does not split a run (`1,000.5`)."""
    return len(re.findall(r"\d+", text.translate(NO_PUNCTUATION))) == n


def punctuation(text: str) -> bool:
    """Return whether `. , ! ? ; :` and an interrobang (`?!`, `!?` or its own character) all occur."""
    others = [text] if INTERROBANG in text else [text.replace(pair, "", 1) for pair in ("?!", "!?") if pair in text]
    return any(set(".,!?;:") <= set(rest) for rest in others)


def keywords_multiple(text: str, *, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """Return whether five keywords occur 1, 2, 3, 5 and 7 times, also inside longer words."""
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    return all(text.lower().count(word.lower()) == times for word, times in zip(keywords, TIMES, strict=True))


def words_japanese(text: str, *, n: int) -> bool:
    """Return whether every n-th word has a Japanese character, unless it is a number or punctuation."""
    wanted = (word.strip(string.punctuation) for word in text.split()[n - 1 :: n])
    return all(not word or word.isdigit() or JAPANESE.search(word) is not None for word in wanted)


def alphabet(text: str) -> bool:
    """Return whether each word begins with the letter that follows the previous word's first, `a` after `z`."""
    first = [ord(word[0]) - ord("a") for word in bare_words(text)]
    return (
        bool(first) and all(letter == (first[0] + place) % 26 for place, letter in enumerate(first)) and first[0] >= 0
    )


def vowel(text: str) -> bool:
    """Return whether the text is one line with at most three of the vowels `a e i o u`."""
    return "\n" not in text.strip() and len(set(text.lower()) & set("aeiou")) <= 3


def consonants(text: str) -> bool:
    """Return whether each word has two adjacent consonants. `y` is one."""
    return all(CLUSTER.search(word) for word in text.lower().split())


def palindrome(text: str) -> bool:
    """Return whether there are at least ten palindromes of five characters or more, with repetition."""
    return sum(len(word) >= SHORTEST_PALINDROME and word == word[::-1] for word in bare_words(text)) >= PALINDROMES


def prime_lengths(text: str) -> bool:
    lengths = {len(word) for word in bare_words(text)}
    return all(length > 1 and all(length % divisor for divisor in range(2, int(length**0.5) + 1)) for length in lengths)


def repeats(text: str, *, small_n: int) -> bool:
    return max(Counter(bare_words(text)).values(), default=0) <= small_n


def no_consecutive(text: str) -> bool:
    """Return whether no two adjacent words begin with the same letter."""
    found = bare_words(text)
    return all(one[0] != other[0] for one, other in pairwise(found))


def paragraph_last_first(text: str) -> bool:
    """Return whether each line ends with its first word, ignoring case."""
    return all(found[0] == found[-1] for line in text.split("\n") if (found := bare_words(line)))


def keywords_specific_position(text: str, *, keyword: str, n: int, m: int) -> bool:
    """Return whether the m-th word of the n-th sentence is the keyword. Inner hyphens and apostrophes do not split words."""
    found = sentences(text)
    inside = re.findall(r"\w+(?:['\u2019-]\w+)*", found[n - 1]) if 0 < n <= len(found) else []
    return 0 < m <= len(inside) and inside[m - 1].lower() == keyword.lower()


def words_position(text: str, *, keyword: str) -> bool:
    """Return whether the second and the second-last word are the keyword. Inner hyphens and apostrophes do not split
    words.
    """
    found = re.findall(r"\w+(?:['\u2019-]\w+)*", text)
    return len(found) > 1 and found[1].lower() == found[-2].lower() == keyword.lower()
