"""Reading what a model wrote takes time in proportion to its length: one that repeats itself stops nobody else's episodes."""

import time

import pytest

from temper.rollout.formats.call_syntax import CallSyntax
from temper.rollout.formats.find import CALL_SYNTAXES

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "-",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
    },
)
REPEATED = (
    "<tool_call>",
    "<function=f>",
    "<parameter=a>\n",
    "<arg_key>a</arg_key>",
    "[TOOL_CALLS]",
    "[",
    '{"a":',
    " ",
    "\n",
)
FRAMES = ("{}", "<tool_call>\n<function=f>\n{}</function>\n</tool_call>", '{{"name": "f", "parameters": {{}}}}{}x')
CHARACTERS = 60_000


@pytest.mark.parametrize("syntax", CALL_SYNTAXES, ids=lambda syntax: syntax.name)
def test_a_text_that_repeats_what_opens_something_is_read_at_once(syntax: CallSyntax) -> None:
    began = time.process_time()
    for word in REPEATED:
        for frame in FRAMES:
            syntax.read(frame.format(word * (CHARACTERS // len(word))), TOOLS)
    assert time.process_time() - began < 5  # the square of such a length takes 12 s for one of these texts
