"""The judges that a run serves itself: their start, restarts and end."""

import asyncio
import json
import secrets

from temper.envs.core.judge_config import ADDRESSES, RUN_KEY
from temper.envs.core.process import JudgeDied
from temper.orchestrator.cluster.judge_server import JudgeServer
from temper.orchestrator.cluster.placement import Node
from temper.orchestrator.loop.deadline import together, within
from temper.orchestrator.run.checkpoint import size_of
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.run_supervision import RunSupervision
from temper.rollout.pool.restarts import RestartLimit

PAUSE_S = 6.0
"""Time before a restart, in seconds: a server that lost its parent finishes its requests within 5."""


class Judges:
    """One server for each model of `RunConfig.judges`."""

    def __init__(self, run: RunContext, *, supervision: RunSupervision) -> None:
        self._run = run
        self._supervision = supervision
        self._servers: list[JudgeServer] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._variables: dict[str, str] = {}

    async def start(self, who: str) -> dict[str, str]:
        """Start the servers before the workers of the stage `who`. Return the workers' environment variables.

        A second call returns the same ones. Raise `JudgeDied` if one ends, and `StuckError` if it does not answer in time.
        """
        models, bundles = self._run.config.judges, self._run.bundles
        if not models or self._variables:
            return self._variables
        assert bundles is not None
        await self.close()  # a start that failed
        key, logs = secrets.token_urlsafe(32), self._run.folder.log.parent
        starts = []
        for number, ((model, source), (bundle, node)) in enumerate(
            zip(models.items(), await bundles.judges(), strict=True)
        ):
            folder = source.path if source.on_hub else str(source.folder)
            server = JudgeServer(model, folder, bundle=bundle, key=key, log=logs / f"judge-{number}.log")
            self._servers.append(server)
            self._run.progress.note(f"{who}: starting {server.name}")
            starts.append((server, node, size_of(source.folder)))
        await together(self._start(*start, who=who) for start in starts)
        self._keeping = [asyncio.create_task(self._keep(*start, who=who)) for start in starts]
        addresses = {model: server.url for model, server in zip(models, self._servers, strict=True)}
        self._variables = {ADDRESSES: json.dumps(addresses), RUN_KEY: key}
        return self._variables

    async def close(self) -> None:
        for task in self._keeping:
            task.cancel()
        servers, self._servers, self._keeping, self._variables = self._servers, [], [], {}
        await asyncio.gather(*(server.close() for server in servers))

    async def _start(self, server: JudgeServer, node: Node, nbytes: int, *, who: str) -> None:
        limit = self._run.config.deadlines.start(nbytes)
        await within(limit, server.start(node), stage=who, waiting_for=f"{server.name} to answer")

    async def _keep(self, server: JudgeServer, node: Node, nbytes: int, *, who: str) -> None:
        """Restart the server when it ends. End the run after too many restarts, or if a restart is late."""
        config = self._run.config.supervision
        limit, serves = RestartLimit(config.restarts, window_s=config.window_s), True
        try:
            while True:
                try:
                    if serves:
                        await server.wait()
                    await self._start(server, node, nbytes, who=who)
                    self._supervision.record_restart(server.name, "answers again after a restart")
                    serves = True
                except JudgeDied as death:
                    serves = False
                    self._supervision.record_failure(server.name, death)
                    limit.count(death)
                    await asyncio.sleep(PAUSE_S)
        except Exception as error:
            self._supervision.end_run(error)
