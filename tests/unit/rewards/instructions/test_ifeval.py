"""IFEval's instructions: a response that follows each one and one that does not, with edge cases."""

from typing import Any

import pytest

from temper.rewards.instructions.rules import IFEVAL, UNCHECKED, read_instruction
from temper.rewards.instructions.text_units import sentences

CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "keywords:existence",
        {"keywords": ["Sun", "warm day"]},
        ["sunny, on a WARM day"],
        ["the sun is warm", "warm day"],
    ),
    (
        "keywords:frequency",
        {"keyword": "sun", "frequency": 2, "relation": "at least"},
        ["Sun, sun", "sunny sunday", "sun sun sun"],
        ["sun", "s un"],
    ),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": "less than"}, ["sun", "moon"], ["sun sun"]),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["sun", "a.b"]},
        ["sunny", "axb"],
        ["The Sun.", "sun-set", "in a.b too"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "E", "let_frequency": 2, "let_relation": "at least"},
        ["Ee", "each tree"],
        ["e", "tr-e"],
    ),
    ("keywords:letter_frequency", {"letter": "!", "let_frequency": 1, "let_relation": "less than"}, ["hey"], ["hey!"]),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": "at least"},
        ["one two three four", "it's a day", "1.5 a b"],
        ["one two three", "a-b c"],
    ),
    ("length_constraints:number_words", {"num_words": 4, "relation": "less than"}, ["a b c", "a - b - c"], ["a b c d"]),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        ["One. Two.", "one. two", "Is it? It is!", "a.\n\nb."],
        ["One, two.", "Dr. Who came.", "It is 3.5 m long."],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "less than"},
        ["See e.g. this one.", "J. Smith came"],
        ["A b. C d."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "a *** b", "***\na\n***\nb\n***"],
        ["a", "a\n\nb", "a\n***\n***\nb", "a\n***\nb\n***\nc"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "Well"},
        ["a\n\nwell, b\n\nc", 'a\n\n"WELL" b\n\nc', "a\n\n'Well's b\n\nc\n\n"],
        [
            "a\n\nb well\n\nc",
            "a\n\nwell b",
            "a\nwell\nc",
            "a\n\nwelly\n\nc",
            "a\n\nwell\n\nc\n\nd",
            "a\n\n\n\nwell\n\nc",
        ],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] and [place]", "[] []", "[a][b]"],
        ["[name]", "[[a]]", "[a\n] [b]", "a] [b"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["a\nP.S. b", "p. s. b"],
        ["PS b", "P.P b", "ps."],
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["a\nP.P.S b", "p. p. s"], ["P.S. b", "PPS"]),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n  - b", "x\n* a\ny\n*b"],
        ["* a", "* a\n* b\n* c", "** a\n** b", "a * b\nc * d", "*\n*"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is no.", "Well. My answer is yes. Bye."],
        ["my answer is no.", "My answer is no", "No."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "**a** and *b*", "*a b* **c**"],
        ["*a*", "** **  *a*", "*a\nb* c", "* a\n* b"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\na\nSection 2\nb", "Section1 Section2", "Section 1 Section 1 Section 9"],
        ["Section 1", "section 1 section 2", "Section one Section two"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', "```json\n[1]\n```", "```\n5\n```", '```JSON\n"a"\n```'],
        ["{'a': 1}", "Here: {}", "{", "```python\n1\n```"],
    ),
    (
        "detectable_format:title",
        {},
        ["<<A>>", "a\n<< b >>\nc", "<<<a>>>"],
        ["<A>", "<<>>", "<< >>", "<<a\nb>>", ">>a<<"],
    ),
    (
        "combination:two_responses",
        {},
        ["a******b", "a\n******\nb\n******", "******a******b"],
        ["a", "a******a", "a******b******c", "a***b", "a************b"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Say Hi."},
        ["Say Hi. Hi!", " say hi.\nHi"],
        ["Hi! Say hi.", "Say: hi.", '"Say hi." Hi'],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "That is all."},
        ["a That is all.", 'a "that is all."\n', "that is all."],
        ["That is all. a", "That is all", "That is all.*"],
    ),
    ("startend:quotation", {}, ['"a"', ' "a b"\n', '""'], ['"a', "'a'", '"', '"a".', "\u201ca\u201d"]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["I am OK", "COVID-19 U.S.", "DON'T", "A, B"],
        ["COVID-19 is", "Ok Fine", "U.S.", "1 2"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 1, "capital_relation": "less than"},
        ["Ok fine"],
        ["I do"],
    ),
    ("change_case:english_capital", {}, ["ABC, 1!", "A"], ["ABc", "123"]),
    ("change_case:english_lowercase", {}, ["abc, 1!"], ["Abc", "..."]),
    ("punctuation:no_comma", {}, ["a; b", "1.5"], ["a, b", "1,000"]),
]


@pytest.mark.parametrize(("name", "given", "right", "wrong"), CASES)
def test_a_response_follows_or_does_not(name: str, given: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    instruction = read_instruction(name, given)
    assert [text for text in right if not instruction.is_followed_by(text)] == []
    assert [text for text in wrong if instruction.is_followed_by(text)] == []


def test_each_instruction_is_tested_or_refused_by_name() -> None:
    assert {name for name, *_ in CASES} == set(IFEVAL)
    assert len(IFEVAL) == 24
    with pytest.raises(ValueError, match="'language:response_language'"):
        read_instruction("language:response_language", {"language": "kn"})
    assert "language:response_language" in UNCHECKED


@pytest.mark.parametrize("name", sorted({name for name, *_ in CASES}))
def test_nothing_and_white_space_follow_nothing(name: str) -> None:
    given = next(given for known, given, *_ in CASES if known == name)
    assert not read_instruction(name, given).is_followed_by("")
    assert not read_instruction(name, given).is_followed_by(" \n\t")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("he came. she left.", ["he came.", "she left."]),
        ('He said "Go." Then he went.', ['He said "Go."', "Then he went."]),
        ("Wait... what? Wait... What?", ["Wait... what?", "Wait...", "What?"]),
        ("Mr. and Mrs. J. R. Smith met Dr. Who.", ["Mr. and Mrs. J. R. Smith met Dr. Who."]),
        ("It came from the U.S. Army. It came from the U.S. The rest stayed.",
         ["It came from the U.S. Army.", "It came from the U.S.", "The rest stayed."]),
        ("So do I. You too.", ["So do I.", "You too."]),
        ("1. First thing.\n2. Second thing.", ["1. First thing.", "2. Second thing."]),
        ("At 3.15 p.m. it cost $1.50. Then 2.", ["At 3.15 p.m. it cost $1.50.", "Then 2."]),
        ("What?! No!!! (Really.) Yes.", ["What?!", "No!!!", "(Really.)", "Yes."]),
        ("A heading\n\nA sentence.", ["A heading\n\nA sentence."]),
        ("", []),
        ("...", ["..."]),
    ],
)  # fmt: skip
def test_sentences_end_where_people_end_them(text: str, found: list[str]) -> None:
    assert sentences(text) == found


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("nonsense:thing", {}, "nonsense:thing"),
        ("keywords:existence", {}, "keywords"),
        ("keywords:existence", {"keywords": []}, "keywords"),
        ("keywords:existence", {"keywords": "a"}, "keywords"),
        ("length_constraints:number_words", {"num_words": 2, "relation": "around"}, "relation"),
        ("length_constraints:number_words", {"num_words": -1, "relation": "at least"}, "num_words"),
        ("length_constraints:number_words", {"num_words": 1.5, "relation": "at least"}, "num_words"),
        ("length_constraints:number_words", {"num_words": float("nan"), "relation": "at least"}, "num_words"),
        ("length_constraints:number_words", {"num_words": True, "relation": "at least"}, "num_words"),
        ("startend:end_checker", {"end_phrase": " "}, "end_phrase"),
    ],
)
def test_a_wrong_instruction_is_refused_by_name(name: str, given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_instruction(name, given)


def test_whole_floats_and_others_arguments_are_accepted() -> None:
    table = {"num_words": 3.0, "relation": "at least", "keywords": None, "num_bullets": 5.0}
    instruction = read_instruction("length_constraints:number_words", table)
    assert instruction.arguments == {"num_words": 3, "relation": "at least"}
