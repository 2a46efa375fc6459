"""Counts of things in a sentence, to be returned as JSON of a given form. The requests are in plain words for a small model."""

import random
from dataclasses import replace

from temper.envs.core.task import Task
from temper.envs.questions import structured_output
from temper.envs.questions.structured_output import INTEGER, NAMES, close_schema

THINGS = (
    "apples", "books", "boxes", "cups", "eggs", "forks", "lamps", "maps", "pears", "pens", "plates", "rings", "shoes",
)  # fmt: skip
MOST = 60


def generate(rng: random.Random, level: int) -> Task:
    things = sorted(rng.sample(THINGS, rng.randint(2, level + 1)))
    counts = {thing: rng.randint(2, MOST) for thing in things}
    listed = [f"{count} {thing}" for thing, count in counts.items()]
    form = ", ".join(f'"{thing}": number' for thing in things)
    text = f"{rng.choice(NAMES)} has {', '.join(listed[:-1])} and {listed[-1]}."
    return Task(
        messages=({"role": "user", "content": f"{text} Reply with JSON only, in the form {{{form}}}."},),
        spec={"schema": close_schema(dict.fromkeys(things, INTEGER)), "value": counts, "steps": ""},
    )


ENVIRONMENT = replace(
    structured_output.ENVIRONMENT, id="counts", generate=generate, levels=3, formats=(), demonstrate=None
)
