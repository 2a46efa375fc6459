"""Calls of made-up functions. Word lists supply the functions, and the requests state all values.

No function, list or request is the leaderboard's (BFCL), but the tasks have its form, so `tool_use` shows and judges them.
Level 1 offers one function, level 2 up to four, and level 3 also wants up to four calls of one function.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import make_call_turn
from temper.envs.tool_use import env
from temper.envs.tool_use.leaderboard_rows import describe_function

Draw = Callable[[random.Random], tuple[Any, str]]
"""Draws a value, and its text in a request."""

# fmt: off
VERBS = {
    "compute": "calculate|compute|estimate|determine|find|get",
    "search": "find|search|list|get|fetch|retrieve|check",
    "make": "book|order|schedule|create|add|send|plan|register|update|reserve",
}
NOUNS = {
    "compute": "heat loss|drag|tank filling time|paint amount|beam load|moon phase angle|loan burden|crop yield|"
    "pump output|solar gain|brick demand|wave energy|sound drop|lens magnification|gear reduction|spring stretch|"
    "battery runtime|travel allowance|pool water|dose interval|fence length|rainwater harvest|cable drop|wind chill|"
    "reservoir inflow|ferment duration|margin share|turnover|ticket income|pension gap|queue delay|signal loss|"
    "dough hydration|stride length|glide range|gravel volume|tile count|lamp brightness",
    "search": "hiking trails|bakeries|museum tours|summer jobs|used bicycles|ferry crossings|pet shelters|tide tables|"
    "language courses|wine cellars|art prints|choir evenings|building permits|patent claims|bird sightings|cabins|"
    "comet passages|repair shops|allergy warnings|podcast episodes|chess openings|rowing results|fossil finds|"
    "tax forms|vaccine trials|folk songs|coin auctions|village fairs|train delays|gene variants|court dates|"
    "opera scores|tea blends|climbing gyms|soil samples|election tallies|old maps|water levels|novels|lawyers",
    "make": "taxi ride|parcel pickup|bill reminder|workout routine|garden bed|newsletter|survey form|boiler repair|"
    "piano hour|dental visit|cake delivery|moving van|photo album|study group|library loan|tent|bedtime story|"
    "window cleaning|seed order|shift swap|blood test|meal box|room heater|charity run|backup job|door code|"
    "language exam|tram pass|guest list|wallpaper sample|sensor alarm|bus charter|drum track|wood carving",
}
TOPICS = "home|farm|trade|clinic|travel|school|town|club|lab|studio|office|kitchen|grid|bureau|park|craft"
ARTICLES = {"compute": "the ", "search": "", "make": "a "}
OPENINGS = "||||Hello! |Good morning. |Please help me. "
REQUESTS = {
    "compute": "What is the {noun} {values}?|{Verb} the {noun} {values}.|I need the {noun} {values}.|"
    "Can you {verb} the {noun} {values}?|How big is the {noun} {values}?|"
    "{Values}, what is the {noun}?|{Values}, {verb} the {noun}.",
    "search": "{Verb} {noun} {values}.|I am looking for {noun} {values}.|Which {noun} are there {values}?|"
    "Show me {noun} {values}.|Could you {verb} {noun} {values}?|"
    "{Values}, {verb} {noun}.",
    "make": "{Verb} a {noun} {values}.|Please {verb} a {noun} {values}.|I want to {verb} a {noun} {values}.|"
    "Can you {verb} a {noun} {values}?|We need a {noun} {values}.|"
    "{Values}, please {verb} a {noun}.",
}
FURTHER_REQUESTS = (
    " Also for another one {values}.| Then do the same {values}.|"
    " After that, one more {values}.| And again {values}.| Do it {values} too."
)
CITIES = (
    "Lisbon|Oslo|Nairobi|Quito|Hanoi|Perth|Porto|Leeds|Bergen|Cusco|Turin|Boise|Cape Town|Des Moines|Salt Lake City|"
    "Ghent|Graz|Accra|Busan|Tulsa|Halifax|Bristol|Fez|Lima|Tampa|Omaha|Kazan|Split|Little Rock"
)
COUNTRIES = "Peru|Ghana|Norway|Chile|Nepal|Kenya|Portugal|Vietnam|New Zealand|Iceland|Morocco|South Korea"
FIRST_NAMES = "Ada|Bruno|Clara|Dario|Elif|Farid|Greta|Hugo|Ines|Jonas|Kira|Liam|Mira|Nils|Olga|Pavel|Rosa|Tariq"
LAST_NAMES = "Abbott|Brandt|Castillo|Dunne|Eriksen|Fontaine|Gupta|Hale|Ivanov|Kowalski|Lindqvist|Moreau|Okafor|Sato"
FIRMS = "Group|Foods|Motors|Labs|Bank|Media|Press|Records|Airlines|Systems"
TITLE_STARTS = "The Silver|A Quiet|The Last|Broken|Midnight|Green|Our First|Hidden|The Long|Seven"
TITLE_ENDS = "River|Garden|Letter|Voyage|Summer|Harbour|Clock|Promise|Mountain|Lantern|Kingdom"
MATERIALS = "oak|copper|brass|cotton|clay|granite|wool|steel|cork|bamboo|slate|linen|zinc|pine|glass wool"
COLORS = "red|blue|dark green|ivory|silver|orange|violet|teal|black|pale yellow|white|brown"
FOODS = "lentils|basil|goat cheese|walnuts|salmon|rye bread|plums|olives|ginger|mushrooms|rice|honey|spinach"
LANGUAGES = "Finnish|Spanish|Swahili|Korean|Greek|Turkish|Hindi|Polish|Welsh|Arabic|Dutch|Thai"
KINDS = "classic|modern|folk|budget|premium|outdoor|vintage|electric|organic|family|jazz|rural|digital|baroque"
ANIMALS = "otter|heron|mule|lynx|barn owl|sheepdog|trout|beetle|grey seal|hedgehog|toad|swan"
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
LABELS = (
    "length m|width cm|height meters|depth feet|mass kg|weight grams|speed km/h|temperature degrees|pressure bar|"
    "voltage volts|current amperes|frequency hertz|distance kilometers|area square meters|volume liters|angle degrees|"
    "density kg/m3|force newtons|power watts|energy joules|time seconds|duration hours|income dollars|deposit dollars|"
    "cost euros|price dollars|radius cm|thickness mm|rate %|share %|term years|age years|flow liters|charge coulombs"
)
PREFIXES = "initial|final|first|second|inner|outer|total|mean|lower|upper|base|daily"
EXTRAS = "photos|breakfast|delivery|reviews|insurance|taxes|subtitles|parking|labels|alerts|receipts|discounts"
SERIES = "values|scores|readings|prices|weights|points|heights|samples"
NUMERALS = "zero|one|two|three|four|five|six|seven|eight|nine|ten"
# fmt: on


def pick(rng: random.Random, listed: str) -> str:
    return rng.choice(listed.split("|"))


def text_draw(*lists: str, by: str = " ") -> Draw:
    """Return a draw of one entry of each list."""
    return lambda rng: (by.join(pick(rng, one) for one in lists),) * 2


def integer_draw(low: int, high: int) -> Draw:
    def draw(rng: random.Random) -> tuple[int, str]:
        value = rng.randint(low, high)
        return value, NUMERALS.split("|")[value] if value <= 10 and rng.random() < 0.3 else str(value)

    return draw


def draw_code(rng: random.Random) -> tuple[str, str]:
    return (f"{''.join(rng.sample('ABCDEHKLMPQRTX', 2))}{rng.choice(['-', ''])}{rng.randint(100, 9999)}",) * 2


def draw_date(rng: random.Random) -> tuple[str, str]:
    year, month, day = rng.randint(2018, 2034), rng.randint(1, 12), rng.randint(1, 28)
    value = f"{year}-{month:02}-{day:02}"
    return value, rng.choice([value, value, f"{MONTHS.split('|')[month - 1]} {day}, {year}"])


def draw_time(rng: random.Random) -> tuple[str, str]:
    return (f"{rng.randint(0, 23):02}:{rng.randrange(0, 60, 5):02}",) * 2


# fmt: off
TEXTS = (
    ("city|location|town|place", "The city", "in {}|near {}|around {}|at {}", text_draw(CITIES)),
    ("location|address_area|region", "The city and country", "in {}|at {}", text_draw(CITIES, COUNTRIES, by=", ")),
    ("origin|from_city|start_point|departure", "The city to start from", "from {}|starting in {}", text_draw(CITIES)),
    ("destination|to_city|end_point|target", "The city to go to", "to {}|ending in {}", text_draw(CITIES)),
    ("country|nation", "The country", "in {}|from {}|for {}", text_draw(COUNTRIES)),
    ("name|person|customer|owner|player|author", "The full name", "for {}|of {}|under the name {}|by {}",
     text_draw(FIRST_NAMES, LAST_NAMES)),
    ("company|brand|supplier|maker", "The name of the company", "by {}|from {}|of {}", text_draw(LAST_NAMES, FIRMS)),
    ("title|label|topic|book|song", "The title", "called '{}'|titled \"{}\"|named {}|about {}",
     text_draw(TITLE_STARTS, TITLE_ENDS)),
    ("material|substance|fabric|surface", "The material", "made of {}|of {}|for {}", text_draw(MATERIALS)),
    ("color|paint|shade", "The color", "in {}|with the color {}", text_draw(COLORS)),
    ("language|spoken_language", "The language", "in {}|for {} speakers", text_draw(LANGUAGES)),
    ("type|category|genre|style|kind", "The kind", "of the {} kind|in {} style", text_draw(KINDS)),
    ("animal|species|pet", "The animal", "for the {}|about the {}", text_draw(ANIMALS)),
    ("dish|ingredient|food|product", "The food", "with {}|containing {}", text_draw(FOODS)),
    ("id|code|reference|order_number", "The identifier", "with the id {}|for number {}|with code {}", draw_code),
    ("date|day|start_date|due_date", "The date (YYYY-MM-DD)", "on {}|for {}|dated {}", draw_date),
    ("time|start_time|hour", "The time of day (HH:MM)", "at {}|from {}", draw_time),
)
CHOICES = (
    ("size", "The size", "small|medium|large", "in {} size|of {} size"),
    ("sort_by|order", "The order of the results", "price|rating|distance|age", "sorted by {}|ordered by {}"),
    ("priority|urgency", "How urgent it is", "low|medium|high", "with {} priority|at {} priority"),
    ("unit|units|system", "The system of units", "metric|imperial", "in {} units"),
    ("period|interval|frequency", "How often it repeats", "daily|weekly|monthly|yearly", "on a {} basis"),
    ("payment|payment_method", "The way to pay", "cash|card|transfer", "paid by {}|with payment by {}"),
    ("format|output", "The format of the result", "pdf|csv|html|text", "as {}|in {} format"),
    ("season|time_of_year", "The season", "spring|summer|autumn|winter", "in {}|during {}"),
    ("method|approach", "The method", "linear|simple|exact|quick", "by the {} method|using the {} method"),
)
COUNTS = (
    ("people|guests|party_size|num_people", "The number of people", "for {} people|for a group of {}", integer_draw(2, 60)),
    ("days|num_days|duration", "The number of days", "for {} days|over {} days|lasting {} days", integer_draw(2, 30)),
    ("limit|max_results|top_n", "The largest number of results", "at most {} results|limited to {} entries",
     integer_draw(2, 25)),
    ("year|in_year", "The year", "in {}|for the year {}|from {}", integer_draw(1890, 2034)),
    ("quantity|amount|number|copies", "The number of pieces", "with {} pieces|for {} of them", integer_draw(2, 90)),
    ("max_price|price_limit|budget", "The highest price in dollars", "under ${}|up to {} dollars", integer_draw(15, 900)),
    ("min_rating|rating|stars", "The lowest rating", "rated at least {}|with {} stars or more", integer_draw(2, 5)),
    ("age|min_age", "The age in years", "for someone aged {}|for {} year olds", integer_draw(5, 80)),
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A parameter: its schema, its draw of values, and the phrase of a request with a place for a value's text."""

    name: str
    names: str
    """Names of the same meaning, of which a function has one."""
    schema: Mapping[str, Any]
    phrase: str
    draw: Draw
    required: bool = True
    defaults: Sequence[Any] = ()
    """The value that the schema names for a call without one, if it names one."""


def make_text_slot(rng: random.Random) -> Slot:
    names, about, phrases, draw = rng.choice(TEXTS)
    example = f", e.g. {draw(rng)[0]}" if rng.random() < 0.25 else ""
    return _slot(rng, names, "string", f"{about}{example}", phrases, draw)


def make_choice_slot(rng: random.Random) -> Slot:
    names, about, options, phrases = rng.choice(CHOICES)
    listed = options.split("|")
    if rng.random() < 0.5:
        return _slot(rng, names, "string", about, phrases, text_draw(options), enum=listed)
    return _slot(rng, names, "string", f"{about}: {', '.join(map(repr, listed))}", phrases, text_draw(options))


def make_count_slot(rng: random.Random) -> Slot:
    names, about, phrases, draw = rng.choice(COUNTS)
    return _slot(rng, names, "integer", about, phrases, draw)


def make_flag_slot(rng: random.Random) -> Slot:
    extra, said = pick(rng, EXTRAS), [(True, "with"), (True, "including"), (False, "without")]
    names = f"include_{extra}|with_{extra}|{extra}"
    return _slot(rng, names, "boolean", f"Whether to include {extra}", f"{{}} {extra}", lambda rng: rng.choice(said))


def make_measure_slot(rng: random.Random) -> Slot:
    label, _, unit = pick(rng, LABELS).partition(" ")
    label = f"{pick(rng, PREFIXES)} {label}" if rng.random() < 0.4 else label
    kind = "float" if unit == "%" else rng.choice(["integer", "integer", "float"])
    high = rng.choice([20, 200, 9000])
    a_label = f"an {label}" if label[0] in "aeiou" else f"a {label}"
    phrases = f"with {a_label} of {{}}|for {a_label} of {{}}|if the {label} is {{}}|at {{}} {label}|given {label} {{}}"

    def draw(rng: random.Random) -> tuple[float, str]:
        value = round(rng.uniform(1, high), 1) if kind == "float" and rng.random() < 0.6 else rng.randint(1, high)
        if unit == "%":
            return (part := rng.randint(1, 60)) / 100, f"{part}%"
        return value, f"${value:,}" if unit == "dollars" and rng.random() < 0.5 else f"{value} {unit}"

    about = "as a fraction, such as 0.05 for 5%" if unit == "%" else f"in {unit}"
    return _slot(rng, label.replace(" ", "_"), kind, f"The {label} {about}", phrases, draw)


def make_list_slot(rng: random.Random) -> Slot:
    numbers, quoted = rng.random() < 0.6, rng.random() < 0.5
    named = (("ingredients", FOODS), ("colors", COLORS), ("languages", LANGUAGES), ("cities", CITIES))
    name, options = (pick(rng, SERIES), "") if numbers else rng.choice(named)

    def draw(rng: random.Random) -> tuple[list[Any], str]:
        count = rng.randint(2, 5)
        drawn = [rng.randint(1, 120) for _ in range(count)] if numbers else rng.sample(options.split("|"), count)
        return drawn, str(drawn) if numbers and quoted else join_texts([str(one) for one in drawn])

    items = {"type": "integer" if numbers else "string"}
    return _slot(rng, name, "array", f"The {name}", f"with the {name} {{}}|for the {name} {{}}", draw, items=items)


def _slot(rng: random.Random, names: str, kind: str, about: str, phrases: str, draw: Draw, **more: Any) -> Slot:
    name, phrase = pick(rng, names), pick(rng, phrases)
    return Slot(
        name=name, names=names, schema={"type": kind, "description": f"{about}."} | more, phrase=phrase, draw=draw
    )


def join_texts(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


SLOTS = {
    "compute": [make_measure_slot] * 7
    + [make_count_slot, make_text_slot, make_choice_slot, make_flag_slot, make_list_slot, make_list_slot],
    "search": [make_text_slot] * 5 + [make_count_slot] * 3 + [make_choice_slot, make_flag_slot],
    "make": [make_text_slot] * 5 + [make_count_slot] * 2 + [make_choice_slot, make_flag_slot, make_list_slot],
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
    verb, noun = pick(rng, VERBS[family]), pick(rng, NOUNS[family])
    stem = noun.replace(" ", "_")
    long, camel = f"{pick(rng, TOPICS)}_{verb}_{stem}", verb + noun.title().replace(" ", "")
    name = rng.choice([f"{verb}_{stem}", f"{stem}_{verb}", long, long, f"{stem}_tool", camel])
    slots: list[Slot] = []
    for make in rng.choices(SLOTS[family], k=rng.choice([1, 2, 2, 3, 3, 3, 4])):
        slot = make(rng)
        if any(slot.names == one.names or slot.name == one.name for one in slots):
            continue
        if slots and rng.random() < 0.3:
            defaults = [slot.draw(rng)[0]] if rng.random() < 0.5 else []
            about = f"{slot.schema['description']} {f'Default is {defaults[0]!r}.' if defaults else 'Optional.'}"
            slot = replace(slot, required=False, defaults=defaults, schema={**slot.schema, "description": about})
        slots.append(slot)
    by = f" by {join_texts([slot.name.replace('_', ' ') for slot in slots])}" if rng.random() < 0.4 else ""
    parameters = {
        "type": "dict",
        "properties": {slot.name: slot.schema for slot in slots},
        "required": [slot.name for slot in slots if slot.required],
    }
    about = f"{verb.capitalize()} {ARTICLES[family]}{noun}{by}."
    schema = {"name": name, "description": about, "parameters": parameters}
    return Function(schema=schema, family=family, noun=noun, slots=slots)


def generate(rng: random.Random, level: int) -> Task:
    function, shape = make_function(rng), rng.randint(1, level)
    others = [make_function(rng) for _ in range(rng.randint(1, 3) if shape == 2 else 0)]
    others = [one for one in others if one.noun != function.noun]
    offered = list({one.name: one for one in (*others, function)}.values())
    rng.shuffle(offered)
    used = [slot for slot in function.slots if slot.required or rng.random() < 0.5]
    wanted, text = write_request(rng, function, used, calls=rng.choice([2, 2, 3, 4]) if shape == 3 else 1)
    unused = {slot.name: ["", *slot.defaults] for slot in function.slots if slot not in used}
    return Task(
        messages=({"role": "user", "content": text},),
        spec={"accepted": [{function.name: call | unused} for call in wanted], "exact": True},
        tools=tuple(describe_function(one.schema, None) for one in offered),
    )


def write_request(
    rng: random.Random, function: Function, used: Sequence[Slot], *, calls: int
) -> tuple[list[dict[str, Any]], str]:
    """Return the accepted values of each call, and the request for all: with lists of values, or call by call."""
    drawn = [{slot.name: slot.draw(rng) for slot in used}]
    changed = {slot.name for slot in rng.sample(used, rng.randint(1, len(used)))}
    for _ in range(calls - 1):
        other = {slot.name: slot.draw(rng) if slot.name in changed else drawn[0][slot.name] for slot in used}
        if not any(all(row[name][0] == value for name, (value, _) in other.items()) for row in drawn):
            drawn.append(other)

    def write_phrases(rows: Sequence[Mapping[str, tuple[Any, str]]], slots: Sequence[Slot]) -> str:
        texts = {one.name: [row[one.name][1] for row in (rows if one.name in changed else rows[:1])] for one in slots}
        said = [slot.phrase.format(join_texts(texts[slot.name])) for slot in slots]
        return join_texts(said) if rng.random() < 0.3 else " ".join(said)

    order = rng.sample(used, len(used))
    texts = [slot.phrase + row[slot.name][1] for row in drawn for slot in used]
    # A list inside quotes, or of texts with commas, could be read in two ways.
    plain = not any(mark in text for text in texts for mark in (", ", "'", '"'))
    listable = plain and len(drawn) > 1 and all(slot.schema["type"] not in ("array", "boolean") for slot in used)
    listed = listable and rng.random() < 0.5
    verb, with_values = pick(rng, VERBS[function.family]), write_phrases(drawn if listed else drawn[:1], order)
    if listed and len(changed) > 1:
        with_values += " respectively"
    text = pick(rng, REQUESTS[function.family]).format(
        noun=function.noun,
        verb=verb,
        Verb=verb.capitalize(),
        values=with_values,
        Values=with_values[0].upper() + with_values[1:],  # names keep their capitals
    )
    for row in [] if listed else drawn[1:]:
        text += pick(rng, FURTHER_REQUESTS).format(
            values=write_phrases([row], [slot for slot in order if slot.name in changed])
        )
    defaults = {slot.name: slot.defaults for slot in used}
    accepted = [
        {name: [value, ""] if value in defaults[name] else [value] for name, (value, _) in row.items()} for row in drawn
    ]
    return accepted, pick(rng, OPENINGS) + text


def demonstrate(task: Task) -> list[Message]:
    accepted = [call for calls in task.spec["accepted"] for call in calls.items()]
    return [make_call_turn([(name, {key: one[0] for key, one in of.items() if one[0] != ""}) for name, of in accepted])]


ENVIRONMENT = replace(
    env.ENVIRONMENT,
    id="calls",
    generate=generate,
    levels=3,
    formats=(),
    demonstrate=demonstrate,
    in_folder=None,
    companions=(),
    max_turns=1,
)
