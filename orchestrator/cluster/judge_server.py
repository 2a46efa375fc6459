"""A judge's model behind `temper serve`: a child process of a Ray task."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import ray
from ray.exceptions import RayError, RayTaskError

from temper.envs.core.process import JudgeDied, kill_group
from temper.envs.sandbox.seal import end_with_parent
from temper.orchestrator.cluster.actors import list_nodes, run_on_node
from temper.orchestrator.cluster.bundles import Bundle
from temper.orchestrator.cluster.placement import Node
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port
from temper.orchestrator.loop.deadline import in_thread

LOOK_S = 0.2
"""Seconds between two checks of the server."""
STOP_S = 30.0
"""Time in which it may finish its requests and stop, in seconds."""
SHOWN_BYTES = 1000
"""The end of its output in an error."""


class JudgeServer:
    """The server of one model. It restarts at the same address."""

    def __init__(self, model: str, folder: str, *, bundle: Bundle, key: str, log: Path) -> None:
        """`folder` is a model directory or a hub name. Requests name it `model` and carry `key`."""
        self.name = f"the judge {model}"
        self.url = ""
        self._words: tuple[str, ...] = (
            folder,
            "--name",
            model,
            "--max-model-len=-1",
        )  # the longest that fits into memory
        self._task = ray.remote(max_retries=0)(run_server).options(**bundle.options())
        self._key, self._log = key, log

    async def start(self, node: Node) -> None:
        """Return once it answers. Raise `JudgeDied` if it ends before."""
        if not self.url:
            host = LOOPBACK if len(await list_nodes()) == 1 else node.address
            port = await run_on_node(node.name, free_port, host)
            self.url = f"http://{host}:{port}/v1"
            self._words += ("--host", host, "--port", str(port))
        self._reference = self._task.remote(self._words, self._key, self._log)
        self._running = asyncio.ensure_future(self._reference)
        while not await in_thread(self._answers):
            if (await asyncio.wait({self._running}, timeout=LOOK_S))[0]:
                await self.wait()

    async def wait(self) -> None:
        """Wait until it ends, then raise `JudgeDied`."""
        try:
            await asyncio.shield(self._running)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            raise JudgeDied(f"{self.name} died: {cause}") from error

    async def close(self) -> None:
        """Stop it. Waits at most `STOP_S` seconds for its requests."""
        if self.url and not self._running.done():
            ray.cancel(self._reference)
            try:
                await asyncio.wait_for(asyncio.gather(self._running, return_exceptions=True), STOP_S)
            except TimeoutError:
                ray.cancel(self._reference, force=True)

    def _answers(self) -> bool:
        try:
            health = self.url.removesuffix("/v1") + "/health"
            return httpx.get(health, timeout=5.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False


def run_server(words: Sequence[str], key: str, log: Path) -> None:
    """Run `temper serve` until this task is cancelled. If the server ends by itself, raise `JudgeDied`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "temper.orchestrator", "serve", *words],
            env=os.environ | {"VLLM_API_KEY": key},
            stdout=output,
            stderr=output,
            preexec_fn=end_with_parent,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            time.sleep(LOOK_S)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S / 2)
        except subprocess.TimeoutExpired:
            process.kill()
        kill_group(process.pid)  # its engine may still load a model
    shown = log.read_bytes()[-SHOWN_BYTES:].decode(errors="replace").strip()
    raise JudgeDied(f"status {process.returncode}; the end of {log}: {shown}")
