"""Plays episodes of a task set of verifiers. It runs under the Python of an environment that has verifiers, not ours.

It answers lines of JSON. The first has the configuration of verifiers' environment, and its answer the tasks, or the error of
the start. Each further line asks for an episode, whose answer has its rewards or its error, or cancels one. The process ends
with its input, so it does not outlive its parent.
"""

import os
import select
import sys

# Programs of verifiers inherit these, and libraries may print. So neither may be the lines.
requests = os.fdopen(os.dup(0), "rb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
del sys.path[0]  # this folder: `env` would be its env.py

import asyncio
import itertools
import json
import signal
import threading
import time
from contextlib import AsyncExitStack, suppress
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.tasksets.harbor.taskset import HarborTaskset
from verifiers.v1.utils.generic import concrete_type
from verifiers.v1.utils.loaders import environment_class, load_environment, taskset_class

LONGEST_LINE = 2**24
LONGEST_ERROR = 2000
STOP_S = 10.0
"""Seconds that an end may take."""
UNFINISHED = ("setup_timeout", "finalize_timeout", "scoring_timeout")
"""Ends of an agent's run without whole rewards."""


def make_env(config: dict[str, Any]) -> Any:
    """Return verifiers' environment, by default with the harness `null` in a process of this machine."""
    ident = config["taskset"]["id"]
    env_type = environment_class(ident, config.get("id", ""))
    config_type = concrete_type(env_type, vf.EnvConfig, origin=vf.Env) or vf.EnvConfig
    taskset_type = concrete_type(taskset_class(ident), vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig
    names = list(agent_config_fields(config_type()))
    if len(names) > 1:
        raise ValueError(f"{ident} has the agents {', '.join(names)}; only one agent can be trained")
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}} | config.get(names[0], {})
    if issubclass(taskset_class(ident), HarborTaskset) and agent["runtime"]["type"] == "subprocess":
        raise ValueError(
            f"episodes of {ident} share /tests and /logs on a machine; set env.{names[0]}.runtime.type=podman"
        )
    taskset = taskset_type.model_validate(config["taskset"])
    return load_environment(config_type.model_validate({**config, names[0]: agent, "taskset": taskset}))


async def play(env: Any, task: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the rewards of an episode, or its error."""
    variable = f"TEMPER_API_KEY_{request['id']}"  # verifiers reads keys there, and hides API_KEY from programs
    os.environ[variable] = request["key"]
    try:
        client = EvalClientConfig(base_url=request["url"], api_key_var=variable)
        episode = await env.run_episode(task, ModelContext(model=request["model"], client=client))
    finally:
        del os.environ[variable]
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        return {"error": "; ".join(f"{error.type}: {error.message}" for error in errors) or "the episode failed"}
    rewards: dict[str, float] = {}
    for trace in episode.traces:
        if trace.stop_condition in UNFINISHED or None in trace.rewards.values():
            return {"error": f"the episode was not scored: {trace.stop_condition}"}
        for name, reward in trace.rewards.items():
            rewards[name] = rewards.get(name, 0.0) + reward.value
    return {"rewards": rewards}


def answer(line: dict[str, Any]) -> None:
    answers.write(json.dumps(line) + "\n")
    answers.flush()


async def serve() -> None:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), requests)
    first = json.loads(await reader.readline())
    async with AsyncExitStack() as servers:
        try:
            env = make_env(first["env"])
            tasks = {task.key: task for task in itertools.islice(iter(env.taskset), first["max_tasks"])}
            await servers.enter_async_context(env.serving())
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"[:LONGEST_ERROR]})
            return
        answer({"tasks": [{"key": key, "prompt": task.data.prompt_text} for key, task in tasks.items()]})
        await play_all(env, tasks, reader)


async def play_all(env: Any, tasks: dict[str, Any], reader: asyncio.StreamReader) -> None:
    """Play the episodes that the lines ask for."""
    line = await reader.readline()
    running: dict[int, asyncio.Task[None]] = {}

    async def run(request: dict[str, Any]) -> None:
        try:
            task = tasks.get(request["task"])
            found = {"error": "this machine has other tasks"} if task is None else await play(env, task, request)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        finally:
            del running[request["id"]]
        if "error" in found:
            found["error"] = found["error"][:LONGEST_ERROR]
        answer({"id": request["id"]} | found)

    while line:
        request = json.loads(line)
        if "cancel" not in request:
            running[request["id"]] = asyncio.create_task(run(request))
        elif task := running.get(request["cancel"]):
            task.cancel()
        line = await reader.readline()
    left = list(running.values())
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def end_after_input(descriptor: int) -> None:
    """End after Temper, also if a task set neither reads the end of its input nor yields."""
    end = select.poll()
    end.register(descriptor, 0)  # reports only the hang-up
    end.poll()
    for ended in (signal.SIGINT, signal.SIGKILL):
        time.sleep(STOP_S)
        os.kill(os.getpid(), ended)


if __name__ == "__main__":
    threading.Thread(target=end_after_input, args=(os.dup(requests.fileno()),), daemon=True).start()
    with suppress(KeyboardInterrupt):  # Temper ends it so
        asyncio.run(serve())
