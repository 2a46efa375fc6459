"""The turns of gpt-oss (OpenAI's Harmony format): messages on the channels analysis, commentary and final.

    <|channel|>analysis<|message|>THOUGHT<|end|><|start|>assistant<|channel|>final<|message|>ANSWER<|return|>
    <|start|>assistant to=functions.NAME<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>

The prompt has written the first `<|start|>assistant`; `<|return|>` and `<|call|>` end a turn, `<|end|>` a message in it. A
call may name who it is for before its channel or behind it. What is said to the user beside calls stands on commentary.
"""

import re

from temper.envs.core.turn_text import BadCall, Call, ParsedTurn, Tags, answer_text, call_from_text

START, CHANNEL, MESSAGE, END, RETURN, CALL = (
    f"<|{word}|>" for word in ("start", "channel", "message", "end", "return", "call")
)
CHANNEL_TAGS = Tags(opening=f"{CHANNEL}analysis{MESSAGE}", closing=END)
NEXT_MESSAGE = f"{END}{START}assistant"
"""What closes a thought: the model then chooses between an answer and a call."""
TURN_ENDS = (RETURN, CALL)
HEAD = re.compile(r"(?:<\|start\|>assistant)?(?P<head>.*?)<\|message\|>(?P<body>.*)", re.DOTALL)
HEAD_TAG = re.compile(r"<\|(?:start|channel|message)\|>")
"""None stands in an answer: it would be another message, to which nothing led over."""
NAME = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
ON_CHANNEL = re.compile(r"<\|channel\|>(\w+)")


def read_channels(text: str, *, thinks: bool) -> ParsedTurn:
    """Read a turn of channels; without thinking there may be no analysis."""
    thoughts, answers, beside, asked = [], [], [], []
    calls: list[Call | BadCall] = []
    well_formed, over = True, False
    for part in text.split(END):
        found = HEAD.fullmatch(part.strip())
        if not part.strip():
            continue
        well_formed &= found is not None and not over
        if found is None:
            continue
        head, body = found["head"], found["body"]
        channel = ON_CHANNEL.search(head)
        if (name := NAME.search(head)) is not None:
            calls.append(call_from_text(name[1], body))
            asked.append(f"{head.strip()}{MESSAGE}{body}")
            over = True
        elif channel is not None and channel[1] == "analysis":
            thoughts.append(body.strip())
        elif channel is not None and channel[1] == "commentary":
            beside.append(body)
        elif channel is not None and channel[1] == "final":
            answers.append(body)
            over = True
        else:
            well_formed = False
    said = answer_text("\n".join([*beside, *answers]))
    readable = bool(answers or calls) and (thinks or not thoughts) and HEAD_TAG.search(said) is None
    return ParsedTurn(
        text=text,
        thought="\n".join(thoughts) if thinks else None,
        answer=answer_text("\n".join([*beside, *answers, *asked])) if readable else "",
        said=said if readable else "",
        readable=readable,
        well_formed=well_formed and readable and len(thoughts) <= 1,
        calls=tuple(calls) if readable else (),
    )
