"""Values written in Java and JavaScript."""

import time
from typing import Any

import pytest

from temper.rewards.foreign_values import JSON_TYPES, Language, foreign_value
from temper.rewards.tool_calls import argument_fits


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("-7", "integer", None, -7),
        ("7.0", "integer", None, "7.0"),
        ("42L", "long", None, 42),
        ("42", "long", None, "42"),
        ("3.5f", "float", None, 3.5),
        ("3.5", "float", None, "3.5"),
        ("3.5e2", "double", None, 350.0),
        ("true", "boolean", None, True),
        ("True", "boolean", None, "True"),
        ("name", "String", None, "name"),
        ("42", "any", None, "42"),
        ("new int[]{1, 2}", "Array", "integer", [1, 2]),
        ("new int[] {}", "Array", "integer", []),
        ('new String[]{"a", "b"}', "Array", "String", ['"a"', '"b"']),
        ("{1, 2}", "Array", "integer", "{1, 2}"),
        ('new ArrayList<>(Arrays.asList("a", "b"))', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<Long>(Arrays.asList(1L, 2L))", "ArrayList", "long", [1, 2]),
        ('new ArrayList<String>() {{\n  add("a");\n  add("b");\n}}', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<>()", "ArrayList", "any", []),
        ("Arrays.asList(1)", "ArrayList", "integer", "Arrays.asList(1)"),
        (
            'new HashMap<String, Object>() {{ put("a", 1); put("b", "x"); put("c", true); put("d", 2.5f); }}',
            "HashMap",
            None,
            {"a": 1, "b": "x", "c": True, "d": 2.5},
        ),
        ("new HashMap<>()", "HashMap", None, {}),
        ("map", "HashMap", None, "map"),
    ],
)
def test_literals_of_java_are_read_by_their_type(text: str, kind: str, items: str | None, value: Any) -> None:
    assert foreign_value(text, kind, items, "java") == value


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("'a'", "String", None, "a"),
        ('"a"', "String", None, "a"),
        ("a", "String", None, "a"),
        ("12", "integer", None, 12),
        ("12n", "Bigint", None, 12),
        ("12", "Bigint", None, "12"),
        ("1.5", "float", None, 1.5),
        ("1e3", "float", None, "1e3"),
        ("false", "Boolean", None, False),
        ("callback", "any", None, "callback"),
        ("['a', \"b\"]", "array", "String", ["a", "b"]),
        ("new Array(1, 2)", "array", "integer", [1, 2]),
        ("[]", "array", "String", []),
        ("[[1, 2], [3.5, x]]", "array", "array", [[1, 2], [3.5, "x"]]),
        ("items", "array", "String", "items"),
        ("{}", "dict", None, {}),
        ("{'a': 1, \"b\": 'x', c: [true, 'y']}", "dict", None, {"a": 1, "b": "x", "c": [True, "y"]}),
        ("options", "dict", None, "options"),
    ],
)
def test_literals_of_javascript_are_read_by_their_type(text: str, kind: str, items: str | None, value: Any) -> None:
    assert foreign_value(text, kind, items, "javascript") == value


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
def test_a_number_of_more_digits_than_python_reads_is_no_accepted_value(
    text: str, kind: str, language: Language, digits: int
) -> None:
    value = foreign_value(text.format("9" * digits), kind, None, language)
    assert not argument_fits(value, [9], {"type": JSON_TYPES[language][kind]})
