"""Agents as users write them, for the tests of the endpoint."""

import asyncio
import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

from temper.envs.agents import AgentEpisode

NUMBERS = count(1)
DIES_AT = """
import json, os, signal, sys, urllib.request
for number in range(1, int(sys.argv[1]) + 1):
    body = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": "a" * number}], "max_tokens": 2}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
os.kill(os.getpid(), signal.SIGKILL)
"""
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "get", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}},
    }
]


def run_tool(call: Any) -> str:
    return f"{call.function.name} {json.loads(call.function.arguments)['key']}"


def openai(episode: AgentEpisode) -> OpenAI:
    return OpenAI(base_url=episode.url, api_key=episode.key, max_retries=0)


def prompt(episode: AgentEpisode) -> Any:
    """The messages, which the clients type more narrowly."""
    return episode.messages


def chat(episode: AgentEpisode) -> str:
    made = openai(episode).chat.completions.create(model=episode.model, messages=prompt(episode))
    return made.choices[0].message.content or ""


def stopped(episode: AgentEpisode) -> float:
    """Whether the texts of two turns have no stop string. One of them comes early."""
    stop, history, texts = ["ab", "ba", "aaa", "bbb"], prompt(episode), ""
    for _ in range(2):
        made = openai(episode).chat.completions.create(model=episode.model, messages=history, stop=stop)
        text = made.choices[0].message.content or ""
        history = [*history, {"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
        texts += f"{text} "
    return float(not any(one in texts for one in stop))


def streamed(episode: AgentEpisode) -> str:
    made = openai(episode).chat.completions.create(
        model=episode.model,
        messages=prompt(episode),
        stream=True,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in made if chunk.choices)


def responses(episode: AgentEpisode) -> str:
    return openai(episode).responses.create(model=episode.model, input=prompt(episode)).output_text


def messages(episode: AgentEpisode) -> str:
    client = Anthropic(base_url=episode.url.removesuffix("/v1"), api_key=episode.key, max_retries=0)
    made = client.messages.create(model=episode.model, max_tokens=64, messages=prompt(episode))
    return "".join(part.text for part in made.content if part.type == "text")


async def converse(episode: AgentEpisode) -> dict[str, float]:
    """Three turns, then a new conversation of two."""
    async with AsyncOpenAI(base_url=episode.url, api_key=episode.key, max_retries=0) as client:
        for turns, first in ((3, prompt(episode)), (2, [{"role": "user", "content": "a summary"}])):
            history: Any = list(first)
            for _ in range(turns):
                made = await client.chat.completions.create(model=episode.model, messages=history, max_tokens=8)
                reply = made.choices[0].message
                history += [{"role": "assistant", "content": reply.content or ""}, {"role": "user", "content": "go on"}]
    return {"turns": 1.0, "share": 0.5}


def many(episode: AgentEpisode) -> str:
    """Ask without an end."""
    while True:
        chat(episode)


def right(episode: AgentEpisode) -> str:
    chat(episode)
    return str(episode.row["answer"])


def silent(_: AgentEpisode) -> float:
    return 1.0


def dies(episode: AgentEpisode) -> str:
    """A program that is killed after its first, second, third ... call."""
    return episode.run([sys.executable, "-c", DIES_AT, str(next(NUMBERS))])


def hangs(episode: AgentEpisode) -> str:
    return episode.run(["sleep", "600"])


def outlives(episode: AgentEpisode) -> float:
    """Note the key."""
    chat(episode)
    Path(episode.row["note"]).write_text(f"{episode.url} {episode.key}", encoding="ascii")
    return 1.0


def repair(episode: AgentEpisode) -> str:
    """Asks once, checks the files of the environment in its folder, and writes the solution into them."""
    answer = chat(episode)
    for path, text in episode.row["files"].items():
        assert (episode.folder / path).read_text(encoding="utf-8") == text
    for path, text in episode.row["solution"].items():
        (episode.folder / path).write_text(text, encoding="utf-8")
    (episode.folder / "link.py").symlink_to("/etc/passwd")
    return answer


def ignore_files(episode: AgentEpisode) -> str:
    return chat(episode)


def fill_the_folder(episode: AgentEpisode) -> str:
    repair(episode)
    (episode.folder / "large.py").write_text("#" * 2**20, encoding="utf-8")
    return chat(episode)


async def at_once(episode: AgentEpisode) -> float:
    """Sub-agents ask at once."""
    async with AsyncOpenAI(base_url=episode.url, api_key=episode.key, max_retries=0) as client:
        asking = (
            client.chat.completions.create(
                model=episode.model, messages=[{"role": "user", "content": f"part {number}"}], max_tokens=8
            )
            for number in range(4)
        )
        await asyncio.gather(*asking)
    return 1.0


def ask_too_much(episode: AgentEpisode) -> dict[str, float]:
    """After an answer, send more than fits on each route. Return the statuses."""
    chat(episode)
    found = {}
    for route, key in (("chat/completions", "messages"), ("messages", "messages"), ("responses", "input")):
        for stream in (False, True):
            text = "more " * episode.row["words"]
            body = {"model": episode.model, key: [{"role": "user", "content": text}], "stream": stream, "max_tokens": 8}
            headers = {"Authorization": f"Bearer {episode.key}"}
            made = httpx.post(f"{episode.url}/{route}", json=body, headers=headers, timeout=60)
            found[f"{route} {stream}"] = float(made.status_code)
    return found
