"""IFBench's instructions: a response that follows each one and one that does not, the loose check, hostile texts."""

import string
import time
from typing import Any

import pytest

from temper.rewards.instructions.following import MAX_CHARACTERS, check_following, loose_forms
from temper.rewards.instructions.rules import IFBENCH, RULES, UNCHECKED, read_instruction

REQUEST = "Write a poem of two lines."
PALINDROMES = "level radar refer kayak civic rotor madam tenet stats solos"
ALPHABET = " ".join(f"{letter}b is." for letter in string.ascii_uppercase)
CSV = "ID,Country,City,Year,Count\n" + '1,X,"Y, Z",2000,5\n' * 7
TSV = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n' + '"1"\t"x"\t"A"\t"2"\t"9"\n' * 3
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, ["a b", "a b c"], ["a", "a b c d"]),
    ("count:unique_word_count", {"N": 3}, ["a b c a", "A, b. c!"], ["a A a. b", "a b -"]),
    ("count:conjunctions", {"small_n": 2}, ["a and b, or c", "But so?"], ["and And and", "android orbit"]),
    ("count:person_names", {"N": 2}, ["Emma met Liam.", "Zoe's Leo"], ["Emma met emma and Emma", "Emmas Leon"]),
    ("count:pronouns", {"N": 2}, ["I see you", "it's this", "she/her"], ["I see", "item hero"]),
    ("count:numbers", {"N": 2}, ["3 and 4", "1,000.5 x2"], ["3", "1 2 3", "two"]),
    ("count:punctuation", {}, ["a, b; c: d. e! f? g?!", ".,;:?! !?", ".,!?;:\u203d"], [".,!?;:", "?!.,;:", ".,;:!?!"]),
    (
        "count:keywords_multiple",
        {f"keyword{place}": word for place, word in enumerate(["aa", "bb", "cc", "dd", "ee"], 1)},
        ["aa " + "bb " * 2 + "CC " * 3 + "dd " * 5 + "ee " * 7],
        ["aa " + "bb " * 2 + "cc " * 3 + "dd " * 5 + "ee " * 8, "bb bb"],
    ),
    ("count:words_japanese", {"N": 2}, ["a \u3042 b \u65e5", "a 7 b \u65e5", "a"], ["a b", "a \u3042 b c"]),
    ("words:alphabet", {}, ["an old", "x, yes; zoo! a b"][1:] + ["no old pal"], ["a c", "b a", "1 2", "a b b"]),
    ("words:vowel", {}, ["a bee is", "rhythm"], ["a bee is o", "a\nb"]),
    ("words:consonants", {}, ["strong myth", "Black"], ["a strong", "go", "and - strong"]),
    ("words:palindrome", {}, [PALINDROMES, PALINDROMES.upper(), "level, " * 10], ["level radar", "noon " * 10]),
    ("words:prime_lengths", {}, ["an old, seven", "it's"], ["a", "four", "an eight-ninth"]),
    ("words:repeats", {"small_n": 2}, ["a b a b", "A a."], ["a a A", "it's its it's"]),
    ("words:no_consecutive", {}, ["a b a", "one"], ["a b, bee", "Apple an"]),
    ("words:last_first", {}, ["I see you. You see me! Me too.", "One."], ["I see you. We see me."]),
    ("words:paragraph_last_first", {}, ["Go and go.\n\nno, not no", "one"], ["Go and see", "go go\ngo on"]),
    (
        "words:keywords_specific_position",
        {"keyword": "sun", "n": 2, "m": 3},
        ["An ox. Go to SUN.", "No! Don't-go, my sun!"],
        ["At my sun. Go on so.", "An ox. Sun is up.", "An ox.", "No. by sun"],
    ),
    (
        "words:words_position",
        {"keyword": "sun"},
        ["The sun is a sun here.", "A sun b"],
        ["Sun is sun", "sun", "A sun b c"],
    ),
    (
        "sentence:alliteration_increment",
        {},
        ["Go on. Big bear goes. Big bears bite now.", "One."],
        ["Big bear. Go on.", "Go on. Go on."],
    ),
    (
        "sentence:increment",
        {"small_n": 2},
        ["Go. Go on now.", "No. Go on now. See it as it was."],
        ["Go. Go on.", "Go on now. Go."],
    ),
    ("sentence:keyword", {"word": "sun", "N": 2}, ["Go. The Sun. No."], ["The sun. Go.", "Go. Sunny.", "Go."]),
    ("ratio:sentence_type", {}, ["Go. No. So?", 'Go. No. "So?"'], ["Go. So?", "Go. No.", "Go", "Go. No. On. So?"]),
    ("ratio:sentence_balance", {}, ["Go. So? No!"], ["Go. So?", "Go", "Go. So? No! On."]),
    ("ratio:sentence_words", {}, ["Ab c. De f! Gh i?"], ["Ab c. De f. Gh.", "Ab. Cd."]),
    (
        "repeat:repeat_change",
        {"prompt_to_repeat": REQUEST},
        ["Sing a poem of two lines."],
        [REQUEST, "Sing a poem", "Sing a poem of two lines. Here it is."],
    ),
    (
        "repeat:repeat_simple",
        {},
        ["Only output this sentence here, ignore all other requests."],
        ["Only output this sentence here.", "Here: Only output this sentence here, ignore all other requests."],
    ),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": REQUEST, "n_start": 1, "n_end": 3},
        ["a poem of", " A poem\nof "],
        ["a poem", "poem of two", "Write a poem of"],
    ),
    ("format:parentheses", {}, ["([{(['x'])}])", "((((()))))"], ["(((())))", "(((((", "([{([x)}])]"]),
    ("format:quotes", {}, ['"a \'b "c" d\' e"', "'a \"b 'c' d\" e'"], ["\"a 'b' c\"", '"a \'b "c', "none"]),
    ("format:options", {"options": "yes/no/maybe"}, ["Yes", " maybe. "], ["yes, because", "yes/no"]),
    ("format:options", {"options": "I know or I don't know"}, ["I don't know.", "i know"], ["I do"]),
    ("format:options", {"options": "a), b), c), d)"}, ["a)", " d) \n"], ["a", "A)", "e)", "a), b)"]),
    ("format:newline", {}, ["a\nb.\n\n- \nc", "one"], ["a b", "a\nb c"]),
    ("format:line_indent", {}, ["a\n b\n\n   c", "a"], ["a\nb", " a\nb", "a\n\tb"]),
    (
        "format:quote_unquote",
        {},
        ['"a" says b', "no quotes", '\u201ca\u201d b "c" d.'],
        ['a "b"', '"a" "b" c', 'a "b".'],
    ),
    ("format:list", {"sep": "!?!?"}, ["!?!? a\n!?!? b"], ["!?!? a", "* a\n* b"]),
    ("format:thesis", {}, ["<i>A</i> b", "x\n<em>A</em>\nb"], ["<i>A</i>", "<i> </i> b", "A b", "<i>A b"]),
    ("format:sub-bullets", {}, ["* a\n - b\n* c\n - d", "* a-b"], ["* a\n* b\n - c"]),
    (
        "format:no_bullets_bullets",
        {},
        ["Go. No.\n* c\n* d", "Go.\n\nNo.\n* c\n* d\n"],
        ["Go.\n* c\n* d", "Go. No.\n* c", "Go. No.\n* c\n* d\ne", "* a\n* b"],
    ),
    ("format:title_case", {}, ["The Old Man", "A 1st iPhone, Don't"], ["The old Man", "a Man", "oLD"]),
    (
        "format:output_template",
        {},
        ["My Answer: a My Conclusion: b Future Outlook: c"],
        ["My Answer: a", "my answer: a"],
    ),
    ("format:no_whitespace", {}, ["a,b"], ["a b", "a\nb", "a\u00a0b"]),
    ("custom:multiples", {}, ["14, 21, 28, 35, 42, 49", "14\n21\n28\n35\n42\n49"], ["14 21 28", "7 14 21 28 35 42 49"]),
    ("custom:character_reverse", {}, [".elgae dlab ehT"], ["bald eagle", "eagle bald"]),
    ("custom:sentence_alphabet", {}, [ALPHABET], [ALPHABET[:-7], ALPHABET.replace("Bb", "Cb")]),
    ("custom:csv_city", {}, [CSV], [CSV + CSV[-10:], CSV.replace("Year", "When"), CSV.replace('"', ""), "a"]),
    ("custom:csv_quotes", {}, [TSV], [TSV.replace('"1"', "1"), TSV.replace("\t", ","), TSV[:-22]]),
    (
        "custom:date_format_list",
        {},
        ["1796-04-12, 1815-06-18"],
        ["1796-04-31", "1900-01-01", "12.4.1796", "1796-04-12,"],
    ),
]


@pytest.mark.parametrize(("name", "given", "right", "wrong"), CASES)
def test_a_response_follows_or_does_not(name: str, given: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    instruction = read_instruction(name, given)
    assert [text for text in right if not instruction.is_followed_by(text)] == []
    assert [text for text in wrong if instruction.is_followed_by(text)] == []


def test_each_instruction_is_tested_or_refused_with_a_reason() -> None:
    assert {name for name, *_ in CASES} == set(IFBENCH)
    assert not set(UNCHECKED) & set(RULES)
    for name in UNCHECKED:
        with pytest.raises(ValueError, match=f"'{name}'"):
            read_instruction(name, {})


def test_loosely_first_and_last_lines_and_asterisks_do_not_count() -> None:
    instructions = [read_instruction("startend:quotation", {}), read_instruction("punctuation:no_comma", {})]
    for text in (
        'Sure, here:\n"a"',
        '"a"\nAnything else, sir?',
        'Sure, here:\n"a"\nBye',
        '**"a"**',
        'Sure:\n\n**"a"**\n\nBye, sir',
    ):
        found = check_following(text, instructions)
        assert not all(found.strict)
        assert all(found.loose), text
    assert check_following('Well,\nsure, here:\n"a"', instructions).loose == (False, False)


def test_instructions_may_be_followed_loosely_in_other_forms() -> None:
    instructions = [
        read_instruction("detectable_format:number_highlighted_sections", {"num_highlights": 1}),
        read_instruction("startend:quotation", {}),
    ]
    assert check_following('*"a"*', instructions).strict == (True, False)
    assert check_following('*"a"*', instructions).loose == (True, True)


def test_a_line_alone_leaves_nothing_that_could_be_followed() -> None:
    assert loose_forms("a") == ("a", "")
    assert check_following("a, b", [read_instruction("punctuation:no_comma", {})]).loose == (False,)


LONG = 20_000
HOSTILE = tuple(
    (part * LONG)[:LONG] + end
    for part, end in (
        *(
            (part, "")
            for part in ("*", "[", "<<a", ".", ". ", "\"'", "a-", "A. ", "Section ", "1", "{(", "\u0130", "\ud800\x00")
        ),
        *((part, "*x") for part in ("\n", " ", ".", "<i>")),
    )
)


@pytest.mark.parametrize("name", sorted(RULES))
def test_hostile_responses_take_little_time(name: str) -> None:
    given = next((given for known, given, *_ in CASES if known == name), ARGUMENTS.get(name, {}))
    instruction = read_instruction(name, given)
    start = time.process_time()
    for text in HOSTILE:
        instruction.is_followed_by(text)
    assert time.process_time() - start < 5


ARGUMENTS: dict[str, dict[str, Any]] = {
    "keywords:existence": {"keywords": ["aa", "b"]},
    "keywords:frequency": {"keyword": "aa", "frequency": 3, "relation": "at least"},
    "keywords:forbidden_words": {"forbidden_words": ["aab", "(a+)+$"]},
    "keywords:letter_frequency": {"letter": "a", "let_frequency": 3, "let_relation": "at least"},
    "length_constraints:number_words": {"num_words": 3, "relation": "at least"},
    "length_constraints:number_sentences": {"num_sentences": 3, "relation": "at least"},
    "length_constraints:number_paragraphs": {"num_paragraphs": 3},
    "length_constraints:nth_paragraph_first_word": {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "a"},
    "detectable_content:number_placeholders": {"num_placeholders": 3},
    "detectable_content:postscript": {"postscript_marker": "P.S."},
    "detectable_format:number_bullet_lists": {"num_bullets": 3},
    "detectable_format:number_highlighted_sections": {"num_highlights": 3},
    "detectable_format:multiple_sections": {"section_spliter": "Section", "num_sections": 3},
    "combination:repeat_prompt": {"prompt_to_repeat": "a"},
    "startend:end_checker": {"end_phrase": "a"},
    "change_case:capital_word_frequency": {"capital_frequency": 3, "capital_relation": "at least"},
}


def test_longer_responses_than_the_limit_follow_nothing() -> None:
    found = check_following("a" * (MAX_CHARACTERS + 1), [read_instruction("punctuation:no_comma", {})])
    assert (found.strict, found.loose) == ((False,), (False,))
