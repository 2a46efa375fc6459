"""`bench`, the endpoint of agents: requests a second of one rollout worker by the length of their history.

`python -m bench.endpoint [--lengths 1000 8000 26000]`, a part of `make bench`. Agents continue conversations by vLLM's routes,
with an engine that costs nothing. The CPU time of the worker's process counts, without the agents' own. It bounds the
requests a second, because one core runs Python.
"""

import argparse
import json
import sysconfig
import tempfile
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

from support.replay_engine import ReplayEngine
from support.scripted_endpoint import ScriptedEndpoint
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from temper.envs.agents import AgentEpisode
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF
from temper.learner.models.fresh import byte_tokenizer
from temper.rollout.engines.protocol import Completion

LENGTHS = (1000, 8000, 26000)
EPISODES, REQUESTS = 8, 12
"""Agents at once, and counted requests of each."""
SAMPLED, OBSERVED = 277, 100
"""Tokens of an answer, and of the message after it."""
VOCABULARY, TRAINED = 16_000, 40
"""Entries of the vocabulary, and texts that it is trained on."""
SOURCES = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
"""The texts: vocabulary, history and observations."""
TOGETHER = Barrier(EPISODES)


def agent(episode: AgentEpisode) -> dict[str, float]:
    """Send the history once, then count requests that continue it. Return CPU seconds of the process and of this thread."""
    connection = HTTPConnection(urlsplit(episode.url).netloc)
    headers = {"Authorization": f"Bearer {episode.key}", "Content-Type": "application/json"}
    messages: list[Any] = [*episode.messages]

    def ask(text: str) -> None:
        messages.append({"role": "user", "content": text})
        body = json.dumps({"model": episode.model, "messages": messages})
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = json.loads(connection.getresponse().read())
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    for text in episode.row["history"]:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "go on"}]
    ask(episode.row["observation"])
    TOGETHER.wait()
    process, own = time.process_time(), time.thread_time()
    for _ in range(REQUESTS):
        ask(episode.row["observation"])
    own = time.thread_time() - own
    TOGETHER.wait()
    return {"process_s": time.process_time() - process, "own_s": own}


def bench_endpoint(lengths: list[int]) -> dict[str, float]:
    """Return the CPU milliseconds of a request and the requests of a core a second, by the tokens of the history."""
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in SOURCES]
    tokenizer = _trained(texts[:TRAINED])
    ids = tokenizer("\n".join(texts[TRAINED : 2 * TRAINED]), add_special_tokens=False)["input_ids"]
    answer = (*ids[: SAMPLED - 1], tokenizer.eos_token_id)
    sampled = Completion(token_ids=answer, logprobs_T=(-1.0,) * SAMPLED, versions_T=(0,) * SAMPLED, finished=True)
    figures = {}
    with (
        tempfile.TemporaryDirectory(prefix="temper-bench-") as folder,
        closing(ScriptedEndpoint(Path(folder), tokenizer, ReplayEngine({}, others=[sampled]))) as endpoint,
    ):
        for length in lengths:
            first = max(0, length - REQUESTS * (SAMPLED + OBSERVED) // 2)  # the counted requests are on both sides
            history = [tokenizer.decode(ids[at : at + 1000]) for at in range(0, first, 1000)]
            spec = {"history": history, "observation": tokenizer.decode(ids[:OBSERVED]), "answer": ""}
            task = Task(key="t", messages=({"role": "user", "content": "Fix it."},), spec=spec, thinking=OFF)
            played = endpoint.play_together(task, "bench.endpoint.agent", episodes=EPISODES)
            parts = [one.score.parts for one in played]
            used = max(one["process_s"] for one in parts) - sum(one["own_s"] for one in parts)
            figures[f"endpoint/ms_at_{length}"] = 1000 * used / (EPISODES * REQUESTS)
            figures[f"endpoint/requests_per_s_at_{length}"] = EPISODES * REQUESTS / used
    return figures


def _trained(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of words and their parts, since one of bytes would be faster."""
    plain = byte_tokenizer()
    plain.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer = plain.train_new_from_iterator(texts, VOCABULARY)
    tokenizer.chat_template = plain.chat_template
    return tokenizer


def main() -> None:
    """Print the figures as a JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.endpoint", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="tokens of the history")
    print(json.dumps(bench_endpoint(parser.parse_args().lengths)))


if __name__ == "__main__":
    main()
