"""The verifiable instructions by id, with the arguments that each takes, as rows of IFEval and IFBench name them."""

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
"""A check: `rule(text, *, arguments)`; the arguments are named as in the rows, in small letters."""
IFEVAL: dict[str, Rule] = {
    "keywords:existence": counts.existence,
    "keywords:frequency": counts.frequency,
    "keywords:forbidden_words": counts.forbidden_words,
    "keywords:letter_frequency": counts.letter_frequency,
    "length_constraints:number_words": counts.number_words,
    "length_constraints:number_sentences": counts.number_sentences,
    "length_constraints:number_paragraphs": counts.number_paragraphs,
    "length_constraints:nth_paragraph_first_word": counts.nth_paragraph_first_word,
    "detectable_content:number_placeholders": form.number_placeholders,
    "detectable_content:postscript": form.postscript,
    "detectable_format:number_bullet_lists": form.number_bullet_lists,
    "detectable_format:constrained_response": form.constrained_response,
    "detectable_format:number_highlighted_sections": form.number_highlighted_sections,
    "detectable_format:multiple_sections": form.multiple_sections,
    "detectable_format:json_format": form.json_format,
    "detectable_format:title": form.title,
    "combination:two_responses": form.two_responses,
    "combination:repeat_prompt": form.repeat_prompt,
    "startend:end_checker": form.end_checker,
    "startend:quotation": form.quotation,
    "change_case:capital_word_frequency": counts.capital_word_frequency,
    "change_case:english_capital": form.english_capital,
    "change_case:english_lowercase": form.english_lowercase,
    "punctuation:no_comma": form.no_comma,
}
IFBENCH: dict[str, Rule] = {
    "count:word_count_range": word.word_count_range,
    "count:unique_word_count": word.unique_word_count,
    "count:conjunctions": word.conjunctions,
    "count:person_names": word.person_names,
    "count:pronouns": word.pronouns,
    "count:numbers": word.numbers,
    "count:punctuation": word.punctuation,
    "count:keywords_multiple": word.keywords_multiple,
    "count:words_japanese": word.words_japanese,
    "words:alphabet": word.alphabet,
    "words:vowel": word.vowel,
    "words:consonants": word.consonants,
    "words:palindrome": word.palindrome,
    "words:prime_lengths": word.prime_lengths,
    "words:repeats": word.repeats,
    "words:no_consecutive": word.no_consecutive,
    "words:last_first": sentence.last_first,
    "words:paragraph_last_first": word.paragraph_last_first,
    "words:keywords_specific_position": word.keywords_specific_position,
    "words:words_position": word.words_position,
    "sentence:alliteration_increment": sentence.alliteration_increment,
    "sentence:increment": sentence.increment,
    "sentence:keyword": sentence.keyword,
    "ratio:sentence_type": sentence.sentence_type,
    "ratio:sentence_balance": sentence.sentence_balance,
    "ratio:sentence_words": sentence.sentence_words,
    "repeat:repeat_change": sentence.repeat_change,
    "repeat:repeat_simple": sentence.repeat_simple,
    "repeat:repeat_span": sentence.repeat_span,
    "format:parentheses": layout.parentheses,
    "format:quotes": layout.quotes,
    "format:options": layout.options,
    "format:newline": layout.newline,
    "format:line_indent": layout.line_indent,
    "format:quote_unquote": layout.quote_unquote,
    "format:list": layout.list_marker,
    "format:thesis": layout.thesis,
    "format:sub-bullets": layout.sub_bullets,
    "format:no_bullets_bullets": layout.no_bullets_bullets,
    "format:title_case": layout.title_case,
    "format:output_template": layout.output_template,
    "format:no_whitespace": layout.no_whitespace,
    "custom:multiples": layout.multiples,
    "custom:character_reverse": layout.character_reverse,
    "custom:sentence_alphabet": sentence.sentence_alphabet,
    "custom:csv_city": layout.csv_city,
    "custom:csv_quotes": layout.csv_quotes,
    "custom:date_format_list": layout.date_format_list,
}
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
    """An instruction with its arguments, all of them there and of their types."""

    id: str
    arguments: Mapping[str, Any]

    def followed_by(self, text: str) -> bool:
        """Tell whether a response follows it; one without anything but white space follows none."""
        return bool(text.strip()) and RULES[self.id](text, **self.arguments)


@cache
def parameters(instruction_id: str) -> dict[str, Any]:
    rule = RULES[instruction_id]
    return {name: get_type_hints(rule)[name] for name in list(inspect.signature(rule).parameters)[1:]}


def read_instruction(instruction_id: str, given: Mapping[str, Any]) -> Instruction:
    """Return the instruction of a row, by its id and `kwargs`; arguments that it does not take are left out."""
    if instruction_id in UNCHECKED:
        raise ValueError(f"instruction {instruction_id!r} is not checked here: {UNCHECKED[instruction_id]}")
    if instruction_id not in RULES:
        raise ValueError(
            f"unknown instruction {instruction_id!r}; there are {len(RULES)}, such as 'punctuation:no_comma'"
        )
    present = {name.lower(): value for name, value in given.items() if value is not None}
    arguments = {}
    for name, kind in parameters(instruction_id).items():
        if name not in present:
            raise ValueError(f"instruction {instruction_id!r} needs the argument {name!r}; it has {sorted(present)}")
        arguments[name] = _argument(f"argument {name!r} of {instruction_id!r}", present[name], kind)
    return Instruction(id=instruction_id, arguments=arguments)


def _argument(what: str, value: Any, kind: Any) -> Any:
    """Return an argument as its rule takes it. A table of rows may have made a float of a whole number."""
    whole = value.is_integer() if isinstance(value, float) else type(value) is int
    if kind is int and whole and value >= 0:
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
