"""One sentence on an animal, in a form that the instruction names: requests in plain words for a small chat model."""

import random
from collections.abc import Iterator
from dataclasses import replace

from temper.envs.core.task import Task
from temper.envs.questions import instruction_following
from temper.envs.questions.requests import Ask, ask

ANIMALS = (
    "bear", "bird", "crab", "deer", "dog", "dolphin", "duck", "fish", "fox", "frog", "giraffe", "goat", "horse", "lion",
    "monkey", "mouse", "pig", "rabbit", "sheep", "snake", "spider", "tiger", "turtle", "whale", "wolf", "zebra",
)  # fmt: skip
PLACES = ("bridge", "desert", "forest", "garden", "house", "island", "lake", "mountain", "river", "village")
"""The rules match parts of words too, so no name is a part of a frequent word."""
TIMES = ("autumn", "evening", "morning", "night", "spring", "summer", "winter")
COMMON = ("a", "and", "is", "the", "with")
LEAST_WORDS = 6


def generate(rng: random.Random, level: int) -> Task:
    animal, time, places = rng.choice(ANIMALS), rng.choice(TIMES), sorted(rng.sample(PLACES, 2))
    form, response = rng.choice(_forms(rng, animal, time, *places))
    least = {"num_words": LEAST_WORDS, "relation": "at least"}
    asked = [  # without the second and third, one word or a copy of the request would follow many forms
        ask(f"Write a sentence about a {animal} in the {time}.", "keywords:existence", {"keywords": [animal]}),
        ask(f"Use at least {LEAST_WORDS} words.", "length_constraints:number_words", least),
        ask("Do not use the word sentence.", "keywords:forbidden_words", {"forbidden_words": ["sentence"]}),
        form,
    ]
    return Task(
        messages=({"role": "user", "content": " ".join(one.words for one in asked)},),
        spec={"instructions": [{"id": one.id, "arguments": one.arguments} for one in asked], "response": response},
    )


def _forms(rng: random.Random, animal: str, time: str, first: str, second: str) -> list[tuple[Ask, str]]:
    """Return instructions, each with a response that follows it."""
    text, word = f"One quiet {animal} sleeps all {time}.", rng.choice(COMMON)
    end, both = f"To the {first}.", {"keywords": [first, second]}
    bullets, marks = rng.randint(2, 3), rng.randint(1, 2)
    return [
        (ask("Use no commas.", "punctuation:no_comma"), text),
        (ask("Put it in double quotes.", "startend:quotation"), f'"{text}"'),
        (ask(f'End with "{end}"', "startend:end_checker", {"end_phrase": end}), f"{text} {end}"),
        (
            ask(
                f"Write exactly {bullets} bullet points.",
                "detectable_format:number_bullet_lists",
                {"num_bullets": bullets},
            ),
            "\n".join([f"* {text}"] * bullets),
        ),
        (
            ask(f"Give it a title in double angular brackets, as <<The {first}>>.", "detectable_format:title"),
            f"<<The {first}>> {text}",
        ),
        (
            ask(
                f"Highlight at least {marks} of the words with asterisks, as *{first}*.",
                "detectable_format:number_highlighted_sections",
                {"num_highlights": marks},
            ),
            f"One quiet *{animal}* sleeps all *{time}*.",
        ),
        (
            ask("Add a postscript, P.S.", "detectable_content:postscript", {"postscript_marker": "P.S."}),
            f"{text} P.S. It snores.",
        ),
        (
            ask(f"Use the words {first} and {second}.", "keywords:existence", both),
            f"One quiet {animal} sleeps between {first} and {second} all {time}.",
        ),
        (ask(f"Do not use the word {word}.", "keywords:forbidden_words", {"forbidden_words": [word]}), text),
        (ask("Use capital letters only.", "change_case:english_capital"), text.upper()),
    ]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    yield from instruction_following.negatives(task)
    yield "a copy of the request", [str(task.messages[0]["content"])]
    yield "one word", [str(task.spec["instructions"][0]["arguments"]["keywords"][0])]


ENVIRONMENT = replace(
    instruction_following.ENVIRONMENT,
    id="sentences",
    generate=generate,
    levels=1,
    formats=(),
    demonstrate=None,
    negatives=negatives,
)
