"""One sentence on an animal, in a form that the instruction names: requests in plain words for a small chat model."""

import random
from dataclasses import replace

from temper.envs.core.task import Task
from temper.envs.questions import instruction_following
from temper.envs.questions.requests import Ask, ask

ANIMALS = (
    "ant", "bear", "bee", "bird", "cat", "cow", "crab", "deer", "dog", "duck", "fish", "fox", "frog", "goat", "hen",
    "horse", "lion", "mouse", "owl", "pig", "rabbit", "seal", "sheep", "snake", "tiger", "whale", "wolf", "zebra",
)  # fmt: skip
PLACES = ("forest", "garden", "house", "lake", "moon", "mountain", "river", "road", "sea", "tree")
TIMES = ("autumn", "evening", "morning", "night", "spring", "summer", "winter")
COMMON = ("a", "and", "is", "the", "with")


def generate(rng: random.Random, level: int) -> Task:
    animal, time, (first, second) = rng.choice(ANIMALS), rng.choice(TIMES), rng.sample(PLACES, 2)
    form, response = rng.choice(_forms(rng, animal, time, first, second))
    asked = [
        ask(f"Write a sentence about a {animal} in the {time}.", "keywords:existence", {"keywords": [animal]}),
        form,
    ]
    return Task(
        messages=({"role": "user", "content": " ".join(one.words for one in asked)},),
        spec={"instructions": [{"id": one.id, "arguments": one.arguments} for one in asked], "response": response},
    )


def _forms(rng: random.Random, animal: str, time: str, first: str, second: str) -> list[tuple[Ask, str]]:
    """Return instructions, each with a response that follows it."""
    text, word = f"One {animal} sleeps all {time}.", rng.choice(COMMON)
    bullets, marks = rng.randint(2, 3), rng.randint(1, 2)
    return [
        (ask("Use no commas.", "punctuation:no_comma"), text),
        (ask("Put it in double quotes.", "startend:quotation"), f'"{text}"'),
        (
            ask(f"End with the words: To the {first}.", "startend:end_checker", {"end_phrase": f"To the {first}."}),
            f"One {animal} runs all {time}. To the {first}.",
        ),
        (
            ask(
                f"Write exactly {bullets} bullet points. Begin each with *.",
                "detectable_format:number_bullet_lists",
                {"num_bullets": bullets},
            ),
            "\n".join([f"* {text}"] * bullets),
        ),
        (
            ask(f"Begin with a title in double angular brackets, as <<The {first}>>.", "detectable_format:title"),
            f"<<The {first}>> {text}",
        ),
        (
            ask(
                f"Highlight at least {marks} of the words with asterisks, as *{first}*.",
                "detectable_format:number_highlighted_sections",
                {"num_highlights": marks},
            ),
            f"One *{animal}* sleeps all *{time}*.",
        ),
        (
            ask(
                "End with a postscript that begins with P.S.",
                "detectable_content:postscript",
                {"postscript_marker": "P.S."},
            ),
            f"{text} P.S. It snores.",
        ),
        (
            ask(
                f"Use the words {first} and {second}.",
                "keywords:existence",
                {"keywords": [first, second]},
            ),
            f"One {animal} sleeps between {first} and {second} all {time}.",
        ),
        (
            ask(f"Do not use the word {word}.", "keywords:forbidden_words", {"forbidden_words": [word]}),
            text,
        ),
        (ask("Use capital letters only.", "change_case:english_capital"), text.upper()),
    ]


ENVIRONMENT = replace(
    instruction_following.ENVIRONMENT, id="sentences", generate=generate, levels=1, formats=(), demonstrate=None
)
