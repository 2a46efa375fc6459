"""The verifiable instructions by id with their arguments, as rows of IFEval and IFBench name them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from temper.rewards.instructions import ifbench_layout as layout
from temper.rewards.instructions import ifbench_sentences as sentence
from temper.rewards.instructions import ifbench_words as word
from temper.rewards.instructions import ifeval_counts as counts
from temper.rewards.instructions import ifeval_layout as form
from temper.rewards.instructions.text_units import Relation

Rule = Callable[..., bool]
"""A check: `rule(text, *, arguments)`. The arguments have the rows' names in lower case."""


def _by_id(groups: Mapping[str, tuple[Rule, ...]]) -> dict[str, Rule]:
    return {f"{group}:{rule.__name__}": rule for group, rules in groups.items() for rule in rules}


IFEVAL = _by_id(
    {
        "keywords": (counts.existence, counts.frequency, counts.forbidden_words, counts.letter_frequency),
        "length_constraints": (
            counts.number_words,
            counts.number_sentences,
            counts.number_paragraphs,
            counts.nth_paragraph_first_word,
        ),
        "detectable_content": (form.number_placeholders, form.postscript),
        "detectable_format": (
            form.number_bullet_lists,
            form.constrained_response,
            form.number_highlighted_sections,
            form.multiple_sections,
            form.json_format,
            form.title,
        ),
        "combination": (form.two_responses, form.repeat_prompt),
        "startend": (form.end_checker, form.quotation),
        "change_case": (counts.capital_word_frequency, form.english_capital, form.english_lowercase),
        "punctuation": (form.no_comma,),
    }
)
IFBENCH = _by_id(
    {
        "count": (
            word.word_count_range,
            word.unique_word_count,
            word.conjunctions,
            word.person_names,
            word.pronouns,
            word.numbers,
            word.punctuation,
            word.keywords_multiple,
            word.words_japanese,
        ),
        "words": (
            word.alphabet,
            word.vowel,
            word.consonants,
            word.palindrome,
            word.prime_lengths,
            word.repeats,
            word.no_consecutive,
            sentence.last_first,
            word.paragraph_last_first,
            word.keywords_specific_position,
            word.words_position,
        ),
        "sentence": (sentence.alliteration_increment, sentence.increment, sentence.keyword),
        "ratio": (sentence.sentence_type, sentence.sentence_balance, sentence.sentence_words),
        "repeat": (sentence.repeat_change, sentence.repeat_simple, sentence.repeat_span),
        "format": (
            layout.parentheses,
            layout.quotes,
            layout.options,
            layout.newline,
            layout.line_indent,
            layout.quote_unquote,
            layout.thesis,
            layout.no_bullets_bullets,
            layout.title_case,
            layout.output_template,
            layout.no_whitespace,
        ),
        "custom": (
            layout.multiples,
            layout.character_reverse,
            sentence.sentence_alphabet,
            layout.csv_city,
            layout.csv_quotes,
            layout.date_format_list,
        ),
    }
) | {"format:list": layout.list_marker, "format:sub-bullets": layout.sub_bullets}
RULES = IFEVAL | IFBENCH
SINGLE = "its published check of this one prompt is a list or a pattern of its own"
UNCHECKED = {
    "language:response_language": "it needs a language detector",
    "words:start_verb": "it needs a tagger of parts of speech",
    "words:odd_even_syllables": "it needs a dictionary of syllables",
    "format:emoji": "it needs a table of emoji",
    "ratio:stop_words": "it needs NLTK's list of stop words",
    "ratio:overlap": "its n-grams are of characters in one version of the published check and of words in another",
    "custom:mcq_count_length": SINGLE,
    "custom:reverse_newline": SINGLE,
    "custom:word_reverse": SINGLE,
    "custom:european_capitals_sort": SINGLE,
    "custom:csv_special_character": SINGLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An instruction with all its arguments, of the right types."""

    id: str
    arguments: Mapping[str, Any]

    def is_followed_by(self, text: str) -> bool:
        """Return whether a response follows the instruction. A blank response follows none."""
        return bool(text.strip()) and RULES[self.id](text, **self.arguments)


@cache
def parameters(instruction_id: str) -> dict[str, Any]:
    rule = RULES[instruction_id]
    return {name: get_type_hints(rule)[name] for name in list(inspect.signature(rule).parameters)[1:]}


def read_instruction(instruction_id: str, given: Mapping[str, Any]) -> Instruction:
    """Return the instruction of a row from its id and `kwargs`. Unknown arguments are ignored."""
    if instruction_id in UNCHECKED:
        raise ValueError(f"instruction {instruction_id!r} is not supported: {UNCHECKED[instruction_id]}")
    if instruction_id not in RULES:
        raise ValueError(
            f"unknown instruction {instruction_id!r}; use one of the {len(RULES)} known ids, such as 'punctuation:no_comma'"
        )
    present = {name.lower(): value for name, value in given.items() if value is not None}
    arguments = {}
    for name, kind in parameters(instruction_id).items():
        if name not in present:
            raise ValueError(
                f"instruction {instruction_id!r} needs the argument {name!r}; the row has {sorted(present)}"
            )
        arguments[name] = _argument(f"argument {name!r} of {instruction_id!r}", present[name], kind)
    return Instruction(id=instruction_id, arguments=arguments)


def _argument(what: str, value: Any, kind: Any) -> Any:
    """Return an argument as its rule takes it. A table of rows may have turned a whole number into a float."""
    is_integer = value.is_integer() if isinstance(value, float) else type(value) is int
    if kind is int and is_integer and value >= 0:
        return int(value)
    if kind is str and isinstance(value, str) and value.strip():
        return value
    if kind == list[str] and isinstance(value, list) and value and all(isinstance(one, str) and one for one in value):
        return value
    if kind == Relation and value in get_args(Relation):
        return value
    wanted = {int: "a whole number, 0 or more", str: "a text"}.get(kind, "a list of texts")
    raise ValueError(
        f"{what} is {value!r:.60}; it must be {'one of ' + str(get_args(kind)) if kind == Relation else wanted}"
    )
