"""Made-up words for generated tasks: so many that a model has to copy them, and can't know them by heart."""

import random

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


def made_words(rng: random.Random, count: int) -> list[str]:
    """Draw so many different words of four letters, of 4,900 in all."""
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(rng.choice(letters) for letters in (CONSONANTS, VOWELS, CONSONANTS, VOWELS))] = None
    return [*words]
