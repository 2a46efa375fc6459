"""Calls of functions that are made of word lists, with their values in plain requests.

No function, word list or request is the leaderboard's, but the tasks have its form, so `tool_use` describes and judges
them. Level 1 offers one function, level 2 up to four, and level 3 also wants up to four calls of one function.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import Call, make_call_turn, parse_calls
from temper.envs.tool_use import env
from temper.envs.tool_use.leaderboard_rows import describe_function
from temper.envs.tool_use.reference import reference

Draw = Callable[[random.Random], tuple[Any, str]]
"""Draws a value, and its text in a request."""


def split(text: str) -> list[str]:
    return text.split(", ")


VERBS = {
    "compute": split("calculate, compute, estimate, determine, find, get"),
    "search": split("find, search, list, get, fetch, retrieve, check"),
    "make": split("book, order, schedule, create, add, send, plan, register, update, reserve"),
}
NOUNS = {
    "compute": split(
        "heat loss, drag, tank filling time, paint amount, beam load, moon phase angle, loan burden, crop yield, pump output, "
        "solar gain, brick demand, wave energy, sound drop, lens magnification, gear reduction, spring stretch, "
        "battery runtime, travel allowance, pool water, dose interval, fence length, rainwater harvest, cable drop, "
        "wind chill, reservoir inflow, ferment duration, margin share, turnover, ticket income, pension gap, queue delay, "
        "signal loss, dough hydration, stride length, glide range, gravel volume, tile count, lamp brightness"
    ),
    "search": split(
        "hiking trails, bakeries, museum tours, summer jobs, used bicycles, ferry crossings, pet shelters, tide tables, "
        "language courses, wine cellars, art prints, choir evenings, building permits, patent claims, bird sightings, cabins, "
        "comet passages, repair shops, allergy warnings, podcast episodes, chess openings, rowing results, fossil finds, "
        "tax forms, vaccine trials, folk songs, coin auctions, village fairs, train delays, gene variants, court dates, "
        "opera scores, tea blends, climbing gyms, soil samples, election tallies, old maps, water levels, novels, lawyers"
    ),
    "make": split(
        "taxi ride, parcel pickup, bill reminder, workout routine, garden bed, newsletter, survey form, boiler repair, "
        "piano lesson, dental visit, cake delivery, moving van, photo album, study group, library loan, tent rental, "
        "bedtime story, window cleaning, seed order, shift swap, blood test, meal box, room heater, charity run, backup job, "
        "door code, language exam, tram pass, guest list, wallpaper sample, sensor alarm, bus charter, drum track, wood carving"
    ),
}
TOPICS = split(
    "home, farm, trade, clinic, travel, school, town, club, lab, studio, office, kitchen, grid, bureau, park, craft"
)
ASKS = {
    "compute": "What is the {n} {w}?|{V} the {n} {w}.|I need the {n} {w}.|Can you {v} the {n} {w}?|How big is the {n} {w}?",
    "search": "{V} {n} {w}.|I am looking for {n} {w}.|Which {n} are there {w}?|Show me {n} {w}.|Could you {v} {n} {w}?",
    "make": "{V} a {n} {w}.|Please {v} a {n} {w}.|I want to {v} a {n} {w}.|Can you {v} a {n} {w}?|We need a {n} {w}.",
}
ARTICLES = {"compute": "the ", "search": "", "make": "a "}
AGAIN = " Also for another one {w}.| Then do the same {w}.| After that, one more {w}.| And again {w}.| Do it {w} too."
CITIES = split(
    "Lisbon, Oslo, Nairobi, Quito, Hanoi, Perth, Porto, Leeds, Bergen, Cusco, Turin, Boise, Cape Town, Des Moines, "
    "Salt Lake City, Ghent, Graz, Accra, Busan, Tulsa, Halifax, Bristol, Fez, Lima, Tampa, Omaha, Kazan, Split, Little Rock"
)
COUNTRIES = split(
    "Peru, Ghana, Norway, Chile, Nepal, Kenya, Portugal, Vietnam, New Zealand, Iceland, Morocco, South Korea"
)
FIRST = split(
    "Ada, Bruno, Clara, Dario, Elif, Farid, Greta, Hugo, Ines, Jonas, Kira, Liam, Mira, Nils, Olga, Pavel, Rosa, Tariq"
)
LAST = split(
    "Abbott, Brandt, Castillo, Dunne, Eriksen, Fontaine, Gupta, Hale, Ivanov, Kowalski, Lindqvist, Moreau, Okafor, Sato"
)
MATERIALS = split(
    "oak, copper, brass, cotton, clay, granite, wool, steel, cork, bamboo, slate, linen, zinc, pine, glass wool"
)
COLORS = split("red, blue, dark green, ivory, silver, orange, violet, teal, black, pale yellow, white, brown")
FOODS = split(
    "lentils, basil, goat cheese, walnuts, salmon, rye bread, plums, olives, ginger, mushrooms, rice, honey, spinach"
)
TONGUES = split("Finnish, Spanish, Swahili, Korean, Greek, Turkish, Hindi, Polish, Welsh, Arabic, Dutch, Thai")
KINDS = split(
    "classic, modern, folk, budget, premium, outdoor, vintage, electric, organic, family, jazz, rural, digital, baroque"
)
ANIMALS = split("otter, heron, mule, lynx, barn owl, sheepdog, trout, beetle, grey seal, hedgehog, toad, swan")
MONTHS = split("January, February, March, April, May, June, July, August, September, October, November, December")


def choose(options: Sequence[str]) -> Draw:
    return lambda rng: (rng.choice(options),) * 2


def joined(*parts: Draw, by: str = " ") -> Draw:
    return lambda rng: (by.join(part(rng)[1] for part in parts),) * 2


def code(rng: random.Random) -> tuple[str, str]:
    return (f"{''.join(rng.sample('ABCDEHKLMPQRTX', 2))}{rng.choice(['-', ''])}{rng.randint(100, 9999)}",) * 2


def iso_date(rng: random.Random) -> tuple[str, str]:
    year, month, day = rng.randint(2018, 2034), rng.randint(1, 12), rng.randint(1, 28)
    value = f"{year}-{month:02}-{day:02}"
    return value, rng.choice([value, value, f"{MONTHS[month - 1]} {day}, {year}"])


def clock(rng: random.Random) -> tuple[str, str]:
    return (f"{rng.randint(0, 23):02}:{rng.randrange(0, 60, 5):02}",) * 2


PERSON = joined(choose(FIRST), choose(LAST))
COMPANY = joined(
    choose(LAST), choose(split("Group, Foods, Motors, Labs, Bank, Media, Press, Records, Airlines, Systems"))
)
TITLE = joined(
    choose(split("The Silver, A Quiet, The Last, Broken, Midnight, Green, Our First, Hidden, The Long, Seven")),
    choose(split("River, Garden, Letter, Voyage, Summer, Harbour, Clock, Promise, Mountain, Lantern, Kingdom")),
)
TEXTS = (
    ("city|location|town|place", "The city", "in {}|near {}|around {}|at {}", choose(CITIES)),
    ("location|address_area|region", "The city and country, such as Porto, Portugal", "in {}|at {}",
     joined(choose(CITIES), choose(COUNTRIES), by=", ")),
    ("origin|from_city|start_point|departure", "The city to start from", "from {}|starting in {}", choose(CITIES)),
    ("destination|to_city|end_point|target", "The city to go to", "to {}|ending in {}", choose(CITIES)),
    ("country|nation", "The country", "in {}|from {}|for {}", choose(COUNTRIES)),
    ("name|person|customer|owner|contact|player|author", "The full name", "for {}|of {}|under the name {}|by {}", PERSON),
    ("company|brand|supplier|maker|organization", "The name of the company", "by {}|from {}|of {}", COMPANY),
    ("title|label|topic|book|song", "The title", "called '{}'|titled \"{}\"|named {}|about {}", TITLE),
    ("material|substance|fabric|surface", "The material", "made of {}|of {}|for {}", choose(MATERIALS)),
    ("color|paint|shade", "The color", "in {}|with the color {}", choose(COLORS)),
    ("language|spoken_language", "The language", "in {}|for {} speakers", choose(TONGUES)),
    ("type|category|genre|style|kind", "The kind, such as modern or folk", "of the {} kind|in {} style", choose(KINDS)),
    ("animal|species|pet", "The animal", "for a {}|about the {}", choose(ANIMALS)),
    ("dish|ingredient|food|product", "The food", "with {}|containing {}", choose(FOODS)),
    ("id|code|reference|order_number", "The identifier", "with the id {}|for number {}|with code {}", code),
    ("date|day|start_date|due_date", "The date (YYYY-MM-DD)", "on {}|for {}|dated {}", iso_date),
    ("time|start_time|hour", "The time of day (HH:MM)", "at {}|from {}", clock),
)  # fmt: skip
ENUMS = (
    ("size", "small, medium, large", "in {} size|of {} size"),
    ("sort_by|order", "price, rating, distance, age", "sorted by {}|ordered by {}"),
    ("priority|quality|difficulty", "low, medium, high", "with {} {name}|at {} {name}"),
    ("unit|units|system", "metric, imperial", "in {} units"),
    ("period|interval|frequency", "daily, weekly, monthly, yearly", "on a {} basis|with a {} {name}"),
    ("payment|payment_method", "cash, card, transfer", "paid by {}|with payment by {}"),
    ("format|output", "pdf, csv, html, text", "as {}|in {} format"),
    ("season|time_of_year", "spring, summer, autumn, winter", "in {}|during {}"),
    ("method|model|approach", "linear, simple, exact, quick", "by the {} {name}|using the {} {name}"),
)
COUNTS = (
    ("people|guests|party_size|num_people", "The number of people", "for {} people|for a group of {}", 2, 60),
    ("days|num_days|duration", "The number of days", "for {} days|over {} days|lasting {} days", 2, 30),
    (
        "limit|max_results|count|top_n",
        "The largest number of results",
        "at most {} results|limited to {} entries",
        1,
        25,
    ),
    ("year|in_year", "The year", "in {}|for the year {}|from {}", 1890, 2034),
    ("quantity|amount|number|copies", "The number of pieces", "with {} pieces|for {} of them", 2, 90),
    (
        "max_price|price_limit|budget",
        "The highest price in dollars",
        "under ${}|for less than {} dollars|up to ${}",
        15,
        900,
    ),
    ("min_rating|rating|stars", "The lowest rating", "rated at least {}|with {} stars or more", 1, 5),
    ("age|min_age", "The age in years", "for someone aged {}|for {} year olds", 5, 80),
)
EXTRAS = split(
    "photos, breakfast, delivery, reviews, insurance, taxes, subtitles, parking, labels, alerts, receipts, discounts"
)
LABELS = split(
    "length m, width cm, height meters, depth feet, mass kg, weight grams, speed km/h, temperature degrees, pressure bar, "
    "voltage volts, current amperes, frequency hertz, distance kilometers, area square meters, volume liters, angle degrees, "
    "density kg/m3, force newtons, power watts, energy joules, time seconds, duration hours, income dollars, deposit dollars, "
    "cost euros, price dollars, radius cm, thickness mm, rate %, share %, term years, age years, flow liters, charge coulombs"
)
PREFIXES = split("initial, final, first, second, inner, outer, total, mean, lower, upper, base, daily")
SERIES = split("values, scores, readings, prices, weights, points, heights, samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A parameter: its schema, its draw of values, and the phrase of a request with a place for a value's text."""

    name: str
    schema: Mapping[str, Any]
    phrase: str
    draw: Draw
    required: bool = True


def text_slot(rng: random.Random) -> Slot:
    names, about, phrases, draw = rng.choice(TEXTS)
    return _slot(rng, names, {"type": "string", "description": f"{about}{_tail(rng)}"}, phrases, draw)


def enum_slot(rng: random.Random) -> Slot:
    names, options, phrases = rng.choice(ENUMS)
    name, listed = rng.choice(names.split("|")), split(options)
    schema: dict[str, Any] = {"type": "string", "description": f"The {name.replace('_', ' ')}{_tail(rng)}"}
    if rng.random() < 0.5:
        schema["enum"] = listed
    else:
        schema["description"] += f" Options: {', '.join(map(repr, listed))}."
    return _slot(rng, name, schema, phrases.replace("{name}", name.replace("_", " ")), choose(listed))


def count_slot(rng: random.Random) -> Slot:
    names, about, phrases, low, high = rng.choice(COUNTS)
    schema = {"type": "integer", "description": f"{about}{_tail(rng)}"}
    return _slot(rng, names, schema, phrases, lambda rng: _number(rng.randint(low, high)))


def flag_slot(rng: random.Random) -> Slot:
    extra = rng.choice(EXTRAS)
    schema = {"type": "boolean", "description": f"Whether to include {extra}."}
    said = [(True, "with"), (True, "including"), (False, "without")]
    return _slot(rng, f"include_{extra}|with_{extra}|{extra}", schema, f"{{}} {extra}", lambda rng: rng.choice(said))


def measure_slot(rng: random.Random) -> Slot:
    label, _, unit = rng.choice(LABELS).partition(" ")
    label = f"{rng.choice(PREFIXES)} {label}" if rng.random() < 0.4 else label
    name = label.replace(" ", "_")
    phrases = f"with a {label} of {{}}|for a {label} of {{}}|if the {label} is {{}}|at {{}} {label}|given {label} {{}}"
    if unit == "%":
        schema = {"type": "float", "description": f"The {label} as a fraction, such as 0.05 for 5%."}
        return _slot(rng, name, schema, phrases, lambda rng: ((part := rng.randint(1, 60)) / 100, f"{part}%"))
    kind, high = rng.choice(["integer", "integer", "float"]), rng.choice([20, 200, 9000])

    def draw(rng: random.Random) -> tuple[float, str]:
        digits = rng.choice([1, 2]) if kind == "float" and rng.random() < 0.6 else 0
        value, text = _number(round(rng.uniform(1, high), digits) if digits else rng.randint(1, high))
        return value, f"${text}" if unit == "dollars" and rng.random() < 0.5 else f"{text} {unit}"

    return _slot(rng, name, {"type": kind, "description": f"The {label} in {unit}{_tail(rng)}"}, phrases, draw)


def list_slot(rng: random.Random) -> Slot:
    numbers, quoted = rng.random() < 0.6, rng.random() < 0.5
    name, options = (rng.choice(SERIES), range(1, 120)) if numbers else rng.choice(
        [("ingredients", FOODS), ("colors", COLORS), ("languages", TONGUES), ("cities", CITIES), ("materials", MATERIALS)]
    )  # fmt: skip

    def draw(rng: random.Random) -> tuple[list[Any], str]:
        drawn = [rng.choice(options) for _ in range(rng.randint(2, 5))]
        return drawn, str(drawn) if numbers and quoted else together([str(one) for one in drawn])

    items = {"type": "integer" if numbers else "string"}
    schema = {"type": "array", "items": items, "description": f"The {name}{_tail(rng)}"}
    return _slot(rng, name, schema, f"with the {name} {{}}|for the {name} {{}}", draw)


def _slot(rng: random.Random, names: str, schema: dict[str, Any], phrases: str, draw: Draw) -> Slot:
    return Slot(name=rng.choice(names.split("|")), schema=schema, phrase=rng.choice(phrases.split("|")), draw=draw)


def _tail(rng: random.Random) -> str:
    return rng.choice([".", ".", ".", " to use."])


def _number(value: float) -> tuple[float, str]:
    return value, f"{value:,}" if value >= 10_000 else str(value)


def together(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


SLOTS = {
    "compute": [measure_slot] * 7 + [count_slot, text_slot, enum_slot, flag_slot, list_slot, list_slot],
    "search": [text_slot] * 5 + [count_slot] * 3 + [enum_slot, flag_slot],
    "make": [text_slot] * 5 + [count_slot] * 2 + [enum_slot, flag_slot, list_slot],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function as the leaderboard writes one, with its slots, and the family and noun of its requests."""

    schema: Mapping[str, Any]
    family: str
    noun: str
    slots: Sequence[Slot]

    @property
    def name(self) -> str:
        return str(self.schema["name"])


def make_function(rng: random.Random) -> Function:
    family = rng.choice(list(VERBS))
    verb, noun = rng.choice(VERBS[family]), rng.choice(NOUNS[family])
    stem = noun.replace(" ", "_")
    name = rng.choice([f"{verb}_{stem}", f"{stem}_{verb}", f"{rng.choice(TOPICS)}_{verb}_{stem}", f"{stem}_tool"])
    slots: dict[str, Slot] = {}
    for make in rng.choices(SLOTS[family], k=rng.choice([1, 2, 2, 3, 3, 3, 4])):
        slot = make(rng)
        if slots and rng.random() < 0.3:
            about = slot.schema["description"] + rng.choice([f" Default is {slot.draw(rng)[0]!r}.", " Optional."])
            slot = replace(slot, required=False, schema=slot.schema | {"description": about})
        slots.setdefault(slot.name, slot)
    by = f" by {together([slot.replace('_', ' ') for slot in slots])}" if rng.random() < 0.4 else ""
    parameters = {
        "type": "dict",
        "properties": {slot.name: slot.schema for slot in slots.values()},
        "required": [slot.name for slot in slots.values() if slot.required],
    }
    about = f"{verb.capitalize()} {ARTICLES[family]}{noun}{by}."
    schema = {"name": name, "description": about, "parameters": parameters}
    return Function(schema=schema, family=family, noun=noun, slots=list(slots.values()))


def generate(rng: random.Random, level: int) -> Task:
    function = make_function(rng)
    shape = rng.randint(1, level)
    others = {(other := make_function(rng)).name: other for _ in range(rng.randint(1, 3) if shape == 2 else 0)}
    offered = [*(others | {function.name: function}).values()]
    rng.shuffle(offered)
    used = [slot for slot in function.slots if slot.required or rng.random() < 0.5]
    wanted, text = request(rng, function, used, calls=rng.choice([2, 2, 3, 4]) if shape == 3 else 1)
    unused = {slot.name: [""] for slot in function.slots if slot not in used}
    accepted = [{function.name: {name: [value] for name, value in call.items()} | unused} for call in wanted]
    return Task(
        messages=({"role": "user", "content": text},),
        spec={"accepted": accepted, "exact": True},
        tools=tuple(describe_function(one.schema, None) for one in offered),
    )


def request(
    rng: random.Random, function: Function, used: Sequence[Slot], *, calls: int
) -> tuple[list[dict[str, Any]], str]:
    """Return the arguments of each call, and the request for all: the changed values in one list, or call by call."""
    drawn = [{slot.name: slot.draw(rng) for slot in used}]
    changed = {slot.name for slot in rng.sample(used, rng.randint(1, len(used)))}
    for _ in range(calls - 1):
        other = {slot.name: slot.draw(rng) if slot.name in changed else drawn[0][slot.name] for slot in used}
        drawn += [other] if other not in drawn else []
    order = rng.sample(used, len(used))

    def phrases(rows: Sequence[Mapping[str, tuple[Any, str]]], slots: Sequence[Slot]) -> str:
        said = [
            slot.phrase.format(together([row[slot.name][1] for row in (rows if slot.name in changed else rows[:1])]))
            for slot in slots
        ]
        return together(said) if rng.random() < 0.3 else " ".join(said)

    listed = (
        len(drawn) > 1 and rng.random() < 0.5 and not any(one.schema["type"] in ("array", "boolean") for one in order)
    )
    verb = rng.choice(VERBS[function.family])
    ask = rng.choice(ASKS[function.family].split("|"))
    text = ask.format(n=function.noun, v=verb, V=verb.capitalize(), w=phrases(drawn if listed else drawn[:1], order))
    if listed and len(changed) > 1:
        text = f"{text[:-1]}, respectively{text[-1]}"
    for row in [] if listed else drawn[1:]:
        text += rng.choice(AGAIN.split("|")).format(w=phrases([row], [slot for slot in order if slot.name in changed]))
    return [{name: value for name, (value, _) in row.items()} for row in drawn], text


def demonstrate(task: Task) -> list[Message]:
    calls = [call for call in parse_calls(reference(task)[0]) if isinstance(call, Call)]
    return [make_call_turn([(call.name, call.arguments) for call in calls])]


ENVIRONMENT = replace(env.ENVIRONMENT, id="calls", generate=generate, levels=3, demonstrate=demonstrate, formats=(),
                      in_folder=None, companions=(), max_turns=1)  # fmt: skip
