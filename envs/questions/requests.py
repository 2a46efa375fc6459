"""Generated requests with verifiable instructions, each with a response that follows them.

Level 1 asks for a made-up word with one instruction on its form. Level 2 combines a structure of words (bullets,
paragraphs, sections, ...), a frame (a title, quotes, capitals, ...) and a restriction (no commas, forbidden words, a
letter). Level 3 has IFBench instructions. A level draws from all levels up to it.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from temper.envs.questions.made_words import draw_words

# fmt: off
WORDS = (
    "ant", "bear", "cat", "deer", "eel", "fox", "goat", "hare", "ibis", "jay", "kite", "lion", "mole", "newt", "owl", "pig",
    "quail", "rat", "seal", "toad", "urial", "vole", "wolf", "xerus", "yak", "zebu",
)
# fmt: on
FORBIDDEN = ("very", "good", "thing", "nice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """An instruction in words, with its id and arguments."""

    words: str
    id: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, and a response that follows it."""

    asks: tuple[Ask, ...]
    response: str

    @property
    def text(self) -> str:
        return " ".join(ask.words for ask in self.asks)


def ask(words: str, instruction: str, arguments: dict[str, Any] | None = None) -> Ask:
    return Ask(words=words, id=instruction, arguments=arguments or {})


def _word(rng: random.Random) -> Request:
    (word, end), times = draw_words(rng, 2), rng.randint(2, 3)
    often = {"keyword": word, "frequency": times, "relation": "at least"}
    bullets = ask(f"{times} bullets.", "detectable_format:number_bullet_lists", {"num_bullets": times})
    forms = (
        (ask("In double quotes.", "startend:quotation"), f'"{word}"'),
        (ask("In capitals.", "change_case:english_capital"), word.upper()),
        (ask("In small letters.", "change_case:english_lowercase"), word),
        (ask("As a title <<...>>.", "detectable_format:title"), f"<<{word}>>"),
        (ask("In *...*.", "detectable_format:number_highlighted_sections", {"num_highlights": 1}), f"*{word}*"),
        (ask("In [...].", "detectable_content:number_placeholders", {"num_placeholders": 1}), f"[{word}]"),
        (ask(f"End with {end}.", "startend:end_checker", {"end_phrase": end}), f"{word} {end}"),
        (ask("As JSON.", "detectable_format:json_format"), json.dumps([word])),
        (ask(f"{times} times.", "keywords:frequency", often), " ".join([word] * times)),
        (bullets, "\n".join([f"* {word}"] * times)),
    )
    form, response = rng.choice(forms)
    return Request(asks=(_include(word), form), response=response)


def _include(word: str) -> Ask:
    return ask(f"Write {word}.", "keywords:existence", {"keywords": [word]})


def _structure(rng: random.Random, said: list[str]) -> tuple[Ask, str]:
    """Return a structure instruction and a text of these words that follows it, not in small letters alone."""
    count, pairs = len(said), [f"{word} and {word}" for word in said]
    nth, request, listed = rng.randint(2, count), f"Say something of a {said[0]}.", " ".join(pairs)
    first = {"num_paragraphs": count, "nth_paragraph": nth, "first_word": said[nth - 1]}
    choices: tuple[tuple[str, str, dict[str, Any], str], ...] = (
        (
            f"Give exactly {count} bullet points with *.",
            "detectable_format:number_bullet_lists",
            {"num_bullets": count},
            "\n".join(f"* {pair}" for pair in pairs),
        ),
        (
            f"Write {count} paragraphs with *** between them.",
            "length_constraints:number_paragraphs",
            {"num_paragraphs": count},
            "\n***\n".join(pairs),
        ),
        (
            f"Write {count} paragraphs with a blank line between them; paragraph {nth} begins with {said[nth - 1]}.",
            "length_constraints:nth_paragraph_first_word",
            first,
            "\n\n".join(pairs),
        ),
        (
            f"Write {count} sections: SECTION 1, SECTION 2, ...",
            "detectable_format:multiple_sections",
            {"section_spliter": "SECTION", "num_sections": count},
            "\n".join(f"SECTION {number} {pair}" for number, pair in enumerate(pairs, 1)),
        ),
        (
            f"Write at least {count} sentences.",
            "length_constraints:number_sentences",
            {"num_sentences": count, "relation": "at least"},
            " ".join(f"{pair}." for pair in map(str.capitalize, pairs)),
        ),
        (
            f"Write at least {2 * count} words.",
            "length_constraints:number_words",
            {"num_words": 2 * count, "relation": "at least"},
            listed,
        ),
        (
            "Give two different responses with ****** between them.",
            "combination:two_responses",
            {},
            f"{pairs[0]}\n******\n{' '.join(pairs[1:])}",
        ),
        (
            f"Highlight at least {count} parts with *...*.",
            "detectable_format:number_highlighted_sections",
            {"num_highlights": count},
            " ".join(f"*{pair}*" for pair in pairs),
        ),
        (
            f"Have at least {count} placeholders such as [name].",
            "detectable_content:number_placeholders",
            {"num_placeholders": count},
            " ".join(f"[{pair}]" for pair in pairs),
        ),
        (
            f"Have at least {count} words in capitals.",
            "change_case:capital_word_frequency",
            {"capital_frequency": count, "capital_relation": "at least"},
            listed.upper(),
        ),
        (
            f"Repeat this first: {request}",
            "combination:repeat_prompt",
            {"prompt_to_repeat": request},
            f"{request} {listed}",
        ),
        (
            "Answer: My answer is yes. Or: My answer is no.",
            "detectable_format:constrained_response",
            {},
            f"{listed}. My answer is no.",
        ),
    )
    words, instruction, arguments, text = rng.choice(choices)
    return ask(words, instruction, arguments), text


def _frame(rng: random.Random, text: str, structure: Ask) -> tuple[Ask, str]:
    """Return an instruction on the frame or the letters of a text, and the text that follows it."""
    begins = structure.id == "combination:repeat_prompt"
    exact = structure.id == "detectable_format:constrained_response"
    word = rng.choice(WORDS)
    postscript = ask("Close with a postscript, P.S.", "detectable_content:postscript", {"postscript_marker": "P.S."})
    end = ask(f"End with {word} {word}.", "startend:end_checker", {"end_phrase": f"{word} {word}."})
    choices = [
        (ask("Give it a title in <<...>>.", "detectable_format:title"), f"{text}\n<<{word}>>"),
        (postscript, f"{text}\nP.S. {word}"),
        (end, f"{text}\n{word} {word}."),
    ]
    if not begins:
        choices.append((ask("Put all of it in double quotes.", "startend:quotation"), f'"\n{text}\n"'))
    if not exact:
        choices.append((ask("Use capitals only.", "change_case:english_capital"), text.upper()))
    if not exact and "SECTION" not in text and not text.isupper():
        choices.append((ask("Use small letters only.", "change_case:english_lowercase"), text.lower()))
    return rng.choice(choices)


def _composed(rng: random.Random) -> Request:
    said = rng.sample(WORDS, rng.randint(2, 4))
    structure, text = _structure(rng, said)
    frame, text = _frame(rng, text, structure)
    few = text.lower().count("e") + 1
    forbidden, letter = list(FORBIDDEN[:2]), {"letter": "e", "let_frequency": few, "let_relation": "less than"}
    limits = (
        ask("Use no commas.", "punctuation:no_comma"),
        ask(f"Never say {' or '.join(forbidden)}.", "keywords:forbidden_words", {"forbidden_words": forbidden}),
        ask(f"Have the letter e less than {few} times.", "keywords:letter_frequency", letter),
    )
    limit = rng.choice(limits)
    include = ask(f"Write about: {' '.join(said)}.", "keywords:existence", {"keywords": said})
    return Request(asks=(include, structure, frame, limit), response=text)


def _alphabetical(rng: random.Random) -> Request:
    count, start = rng.randint(4, 8), rng.randrange(26)
    least = {"num_words": count, "relation": "at least"}
    words = ask(f"Write at least {count} words.", "length_constraints:number_words", least)
    said = [WORDS[(start + place) % 26] for place in range(count)]
    rule = rng.choice(
        (
            (ask("Each word begins with the letter after that of the word before it.", "words:alphabet"), " "),
            (ask("No two words side by side begin with the same letter.", "words:no_consecutive"), " "),
            (ask("No word more than once.", "words:repeats", {"small_n": 1}), " "),
            (ask("Each word on a line of its own.", "format:newline"), "\n"),
            (ask(f"Include exactly {count} numbers.", "count:numbers", {"n": count}), " 7 "),
        )
    )
    return Request(asks=(words, rule[0]), response=rule[1].join(said) + (" 7" if "7" in rule[1] else ""))


def _stepped(rng: random.Random) -> Request:
    count, step, word = rng.randint(2, 4), rng.randint(1, 2), rng.choice(WORDS)
    lengths = [1 + step * place for place in range(count)]
    least = {"num_sentences": count, "relation": "at least"}
    sentences = ask(f"Write at least {count} sentences.", "length_constraints:number_sentences", least)
    more = ask(f"Each has exactly {step} more words than the one before it.", "sentence:increment", {"small_n": step})
    said = " ".join(f"{word} {' '.join([word] * (length - 1))}".strip().capitalize() + "." for length in lengths)
    return Request(asks=(sentences, more), response=said)


def _nested(rng: random.Random) -> Request:
    word, other = rng.sample(WORDS, 2)
    quoted, indented = f'"{other} \'is "{word}" it\' it"', f"{word}\n {other}\n  {word}"
    shape, response = rng.choice(
        (
            (ask("Nest brackets ([{([ around it.", "format:parentheses"), f"([{{([{word}])}}])"),
            (ask("Nest quotes, double and single in turns, three deep.", "format:quotes"), quoted),
            (ask("No white space at all.", "format:no_whitespace"), f"{word}-{other}"),
            (ask("Each line ends with its first word.", "words:paragraph_last_first"), f"{word} {other} {word}"),
            (ask("Each line begins with more spaces than the one before it.", "format:line_indent"), indented),
        )
    )
    return Request(asks=(_include(word), shape), response=response)


MakeRequest = Callable[[random.Random], Request]
LEVELS: dict[int, tuple[MakeRequest, ...]] = {1: (_word,), 2: (_composed,), 3: (_alphabetical, _stepped, _nested)}


def draw(rng: random.Random, level: int) -> Request:
    return rng.choice(LEVELS[rng.randint(1, level)])(rng)
