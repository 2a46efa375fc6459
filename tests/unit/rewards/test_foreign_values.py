"""Values written in Java and JavaScript."""

import time
from typing import Any

import pytest

from temper.rewards.foreign_values import JSON_TYPES, Language, foreign_value
from temper.rewards.tool_calls import is_argument_accepted


@pytest.mark.parametrize(
    ("kind", "items", "cases"),
    [
        ("integer", None, [("-7", -7), ("7.0", "7.0")]),
        ("long", None, [("42L", 42), ("42", "42")]),
        ("float", None, [("3.5f", 3.5), ("3.5", "3.5")]),
        ("double", None, [("3.5e2", 350.0)]),
        ("boolean", None, [("true", True), ("True", "True")]),
        ("String", None, [("name", "name")]),
        ("any", None, [("42", "42")]),
        ("Array", "integer", [("new int[]{1, 2}", [1, 2]), ("new int[] {}", []), ("{1, 2}", "{1, 2}")]),
        ("Array", "String", [('new String[]{"a", "b"}', ['"a"', '"b"'])]),
        ("ArrayList", "String", [('new ArrayList<>(Arrays.asList("a", "b"))', ["a", "b"])]),
        ("ArrayList", "String", [('new ArrayList<String>() {{\n  add("a");\n  add("b");\n}}', ["a", "b"])]),
        ("ArrayList", "long", [("new ArrayList<Long>(Arrays.asList(1L, 2L))", [1, 2])]),
        ("ArrayList", "any", [("new ArrayList<>()", [])]),
        ("ArrayList", "integer", [("Arrays.asList(1)", "Arrays.asList(1)")]),
        (
            "HashMap",
            None,
            [
                (
                    'new HashMap<String, Object>() {{ put("a", 1); put("b", "x"); put("c", true); put("d", 2.5f); }}',
                    {"a": 1, "b": "x", "c": True, "d": 2.5},
                )
            ],
        ),
        ("HashMap", None, [("new HashMap<>()", {}), ("map", "map")]),
    ],
)
def test_literals_of_java_are_read_by_their_type(kind: str, items: str | None, cases: list[tuple[str, Any]]) -> None:
    assert [foreign_value(text, kind, items, "java") for text, _ in cases] == [value for _, value in cases]


@pytest.mark.parametrize(
    ("kind", "items", "cases"),
    [
        ("String", None, [("'a'", "a"), ('"a"', "a"), ("a", "a")]),
        ("integer", None, [("12", 12)]),
        ("Bigint", None, [("12n", 12), ("12", "12")]),
        ("float", None, [("1.5", 1.5), ("1e3", "1e3")]),
        ("Boolean", None, [("false", False)]),
        ("any", None, [("callback", "callback")]),
        ("array", "String", [("['a', \"b\"]", ["a", "b"]), ("[]", []), ("items", "items")]),
        ("array", "integer", [("new Array(1, 2)", [1, 2])]),
        ("array", "array", [("[[1, 2], [3.5, x]]", [[1, 2], [3.5, "x"]])]),
        ("dict", None, [("{}", {}), ("{'a': 1, \"b\": 'x', c: [true, 'y']}", {"a": 1, "b": "x", "c": [True, "y"]})]),
        ("dict", None, [("options", "options")]),
    ],
)
def test_literals_of_javascript_are_read_by_their_type(
    kind: str, items: str | None, cases: list[tuple[str, Any]]
) -> None:
    assert [foreign_value(text, kind, items, "javascript") for text, _ in cases] == [value for _, value in cases]


def test_long_texts_are_read_in_a_moment() -> None:
    languages: list[tuple[Language, str]] = [("java", "ArrayList"), ("java", "HashMap"), ("java", "Array")]
    languages += [("javascript", "array"), ("javascript", "dict")]
    began = time.process_time()
    starts = ("new ArrayList<", "new HashMap<>() {{ put(", "new int[]{", "[[", "{a:", "[" * 50, "new HashMap<")
    for language, kind in languages:
        for start in starts:
            for filling in (" ", "a,", "new ArrayList<>() {{ ", "put(", "a: ", "[", "[1], ", "new HashMap<"):
                foreign_value((start + filling * 8192)[:8192], kind, "String", language)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("text", "kind", "language"),
    [
        ("{}", "integer", "java"),
        ("-{}L", "long", "java"),
        ("{}f", "float", "java"),
        ("{}", "double", "java"),
        ('new HashMap<>() {{{{ put("a", {}); }}}}', "HashMap", "java"),
        ("new int[]{{{}}}", "Array", "java"),
        ("{}", "integer", "javascript"),
        ("{}n", "Bigint", "javascript"),
        ("[{}]", "array", "javascript"),
        ("{{a: {}}}", "dict", "javascript"),
    ],
)
@pytest.mark.parametrize("digits", [4001, 4301, 8000])
def test_a_number_with_too_many_digits_is_not_accepted(text: str, kind: str, language: Language, digits: int) -> None:
    value = foreign_value(text.format("9" * digits), kind, None, language)
    assert not is_argument_accepted(value, [9], {"type": JSON_TYPES[language][kind]})
