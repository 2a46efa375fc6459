"""Plays episodes of a task set of verifiers. It runs under the Python of an environment that has verifiers, not ours.

Lines of JSON: the first of standard input is the configuration of verifiers' environment, its answer the tasks. Each further
line asks for an episode, and its answer, in any order, has the rewards or the error.
"""

import asyncio
import itertools
import json
import os
import sys
from functools import partial
from typing import Any, TextIO

import verifiers.v1 as vf
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.generic import concrete_type
from verifiers.v1.utils.loaders import environment_class, load_environment, taskset_class


def make_env(given: dict[str, Any]) -> Any:
    """Return the environment of a configuration, by default with the harness `null` in a process of this machine."""
    ident = given["taskset"]["id"]
    env_type = environment_class(ident, given.get("id", ""))
    config_type = concrete_type(env_type, vf.EnvConfig, origin=vf.Env) or vf.EnvConfig
    taskset_type = concrete_type(taskset_class(ident), vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig
    taskset = taskset_type.model_validate(given["taskset"])
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    agents = {name: agent | given.get(name, {}) for name in agent_config_fields(config_type())}
    return load_environment(config_type.model_validate({**given, **agents, "taskset": taskset}))


async def play(env: Any, task: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the rewards of an episode, or its error."""
    variable = f"TEMPER_KEY_{asked['id']}"  # verifiers takes keys from the environment only
    os.environ[variable] = asked["key"]
    try:
        client = EvalClientConfig(base_url=asked["url"], api_key_var=variable)
        episode = await env.run_episode(task, ModelContext(model=asked["model"], client=client))
    finally:
        del os.environ[variable]
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        return {"error": "; ".join(f"{error.type}: {error.message}" for error in errors) or "the episode failed"}
    rewards: dict[str, float] = {}
    for trace in episode.traces:
        for name, reward in trace.rewards.items():
            rewards[name] = rewards.get(name, 0.0) + (0.0 if reward is None else reward.value)
    return {"rewards": rewards}


async def serve(answers: TextIO) -> None:
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def answer(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    given = json.loads(await reader.readline())
    env = make_env(given["env"])
    tasks = list(itertools.islice(iter(env.taskset), given["most"]))
    answer({"tasks": [{"key": task.key, "prompt": task.data.prompt_text} for task in tasks]})
    running: dict[int, asyncio.Task[None]] = {}

    async def one(asked: dict[str, Any]) -> None:
        try:
            found = await play(env, tasks[asked["task"]], asked)
        except asyncio.CancelledError:
            return
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        answer({"id": asked["id"]} | found)

    def drop(ident: int, _: Any) -> None:
        del running[ident]

    async with env.serving():
        while line := await reader.readline():
            asked = json.loads(line)
            if "cancel" in asked:
                if task := running.get(asked["cancel"]):
                    task.cancel()
                continue
            task = running[asked["id"]] = asyncio.create_task(one(asked))
            task.add_done_callback(partial(drop, asked["id"]))
        for task in running.values():
            task.cancel()


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print
    asyncio.run(serve(lines))
