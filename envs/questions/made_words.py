"""Made-up words for generated tasks. A model has to copy them, since there are too many to memorise."""

import random

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


def draw_words(rng: random.Random, count: int) -> list[str]:
    """Draw distinct words of four letters, out of 4,900."""
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(rng.choice(letters) for letters in (CONSONANTS, VOWELS, CONSONANTS, VOWELS))] = None
    return [*words]
