"""An agent that asks at random in several conversations, and a model that writes random turns, also odd ones."""

import random
from dataclasses import dataclass, field
from typing import Any

import httpx
from support.replay_engine import ReplayEngine
from transformers import PreTrainedTokenizerBase

from temper.envs.agents import AgentEpisode
from temper.envs.core.task import Message, Tool
from temper.envs.core.turn_text import call_message
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.episodes.renderer import Renderer

WORDS = ("Paris", "London", "17", "x < 2", '"quoted"', "true", "a\nb", "caf\u00e9", "\u6c34", "{}", "1.50", "looking")
MERGES = [
    (word[:end], word[end]) for word in ("Paris", "London", "looking", "true", "key") for end in range(1, len(word))
]
"""Merges of a tokenizer, so that a word has several encodings."""
TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks up a key.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
    }
    for name in ("look_up", "search")
]
ODDITIES = ("cut", "blanks", "compact", "broken")
ACTIONS = {"follow": 14, "repeat": 1, "fork": 1, "delegate": 1, "compact": 1, "rewrite": 1, "other tools": 1}
REQUESTS = 10


def words(draw: random.Random, most: int = 5) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))


@dataclass(slots=True, kw_only=True)
class Asked:
    """A request with the ids of its prompt and of its answer, as the engine has them, and the reply to the client."""

    messages: list[Message]
    tools: list[Tool]
    odd: str = ""
    prompt: tuple[int, ...] = ()
    sampled: tuple[int, ...] = ()
    reply: dict[str, Any] = field(default_factory=dict)


class OddModel(ReplayEngine):
    """Writes turns as its family does. Some are cut, oddly formatted, or in tokens that the tokenizer would not choose."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__({})
        self._tokenizer = tokenizer
        self._renderer = Renderer(tokenizer)
        self.begin("", thinks=False)

    def begin(self, seed: str, *, thinks: bool) -> None:
        """Begin an episode."""
        self.draw, self.thinks = random.Random(seed), thinks
        self.asked: list[Asked] = []

    async def generate(self, request: TurnRequest) -> Completion:
        odd = self.draw.choice(ODDITIES) if self.draw.random() < 0.3 else ""
        ids = self._renderer.encode(self._text(request.prompt_ids, odd))
        if self.draw.random() < 0.5:
            ids = tuple(part for token in ids for part in self._parts(token))
        if odd == "cut":
            ids = ids[: self.draw.randint(1, len(ids) - 1)]
        call = self.asked[-1]
        call.prompt, call.sampled, call.odd = request.prompt_ids, ids, odd
        logprobs = tuple(-self.draw.random() for _ in ids)
        return Completion(token_ids=ids, logprobs_T=logprobs, versions_T=(0,) * len(ids), finished=odd != "cut")

    def _text(self, prompt: tuple[int, ...], odd: str) -> str:
        form = self._renderer.format
        names = [tool["function"]["name"] for tool in self.asked[-1].tools]
        count = self.draw.randint(0, 2 if form.parallel else 1) if names else 0
        calls = [call_message(self.draw.choice(names), {"key": words(self.draw)}) for _ in range(count)]
        turn: Message = {"role": "assistant", "content": "" if calls else words(self.draw)}
        turn |= {"reasoning_content": words(self.draw)} if self.thinks and form.tags else {}
        turn |= {"tool_calls": calls} if calls else {}
        text = self._renderer.answer_text(turn, thinks=self.thinks, context_ids=prompt)
        if odd == "compact":
            return text.replace('": ', '":').replace(', "', ',"')
        if odd == "broken":
            return text.replace('"', "", 1)
        end = next((end for end in form.ends if text.endswith(end)), "")
        return f"{text.removesuffix(end)} \n{end}" if odd == "blanks" else text

    def _parts(self, token: int) -> list[int]:
        """Return the bytes of a merged token, or the token."""
        symbols = self._tokenizer.convert_ids_to_tokens(token)
        if token in self._tokenizer.get_added_vocab().values() or self.draw.random() < 0.5:
            return [token]
        return list(self._tokenizer.convert_tokens_to_ids([*symbols]))


MODEL: list[OddModel] = []
"""The model of the next episode, which also draws the actions of its agent."""


def wander(episode: AgentEpisode) -> float:
    """Ask, and log each request. The tool answers, the users and the actions are random."""
    model = MODEL[-1]
    draw, sends_thoughts = model.draw, model.draw.random() < 0.5
    tools = TOOLS[: draw.randint(0, 2)] if model._renderer.format.reads_calls else []
    talks: list[list[Message]] = [[*episode.messages]]

    def ask(messages: list[Message], tools: list[Tool]) -> list[Message]:
        model.asked.append(Asked(messages=messages, tools=tools))
        body = {"model": episode.model, "messages": messages} | ({"tools": tools} if tools else {})
        headers = {"Authorization": f"Bearer {episode.key}"}
        answer = httpx.post(f"{episode.url}/chat/completions", json=body, headers=headers, timeout=100)
        assert answer.status_code == 200, answer.text
        reply = model.asked[-1].reply = answer.json()
        said = reply["choices"][0]["message"]
        kept = ("role", "content", "tool_calls", *(("reasoning",) if sends_thoughts else ()))
        return [*messages, {key: said[key] for key in kept if said.get(key)}]

    def follow(talk: list[Message]) -> list[Message]:
        """Return the conversation with the answers to its last calls, or else with another request."""
        answers = [
            {"role": "tool", "tool_call_id": call["id"], "content": words(draw)}
            for call in talk[-1].get("tool_calls", ())
        ]
        return [*talk, *(answers or [{"role": "user", "content": words(draw)}])]

    talks[0] = ask(talks[0], tools)
    while len(model.asked) < REQUESTS:
        at = max(draw.randrange(len(talks)), draw.randrange(len(talks)))
        talk, past = talks[at], draw.choice(model.asked).messages
        match draw.choices([*ACTIONS], [*ACTIONS.values()])[0]:
            case "follow":
                talks[at] = ask(follow(talk), tools)
            case "other tools" if model._renderer.format.reads_calls:
                ask(follow(talk), TOOLS[:1] if tools != TOOLS[:1] else TOOLS)
            case "repeat":
                ask(past, tools)
            case "fork":
                talks.append(
                    ask(
                        [*past, {"role": "assistant", "content": "no"}, {"role": "user", "content": words(draw)}], tools
                    )
                )
            case "delegate":
                talks.append(
                    ask([{"role": "system", "content": words(draw)}, {"role": "user", "content": words(draw)}], tools)
                )
            case "compact":
                talks[at] = ask(
                    [talk[0], {"role": "assistant", "content": words(draw)}, {"role": "user", "content": "go on"}],
                    tools,
                )
            case "rewrite":
                place = draw.choice([at for at, message in enumerate(talk) if message["role"] != "assistant"])
                shorter = talk[place] | {"content": talk[place]["content"][:4]}
                talks[at] = ask(follow([*talk[:place], shorter, *talk[place + 1 :]]), tools)
    return 1.0
