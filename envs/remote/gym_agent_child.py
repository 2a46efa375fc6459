"""Plays episodes of an agent of NeMo-Gym. It runs under the Python of an environment that has nemo-gym, not ours.

Arguments: the agent's name, and the host and port of its resources server. It prints a line of JSON with its own port, or
the error of the start. Each connection sends a row and the model's environment variables as a line of JSON, and gets the
reward or an error. A fork plays it and ends with the connection, because NeMo-Gym repeats requests to a lost model for ever.
The program ends with its input.
"""

import asyncio
import json
import os
import select
import socket
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from socketserver import ForkingTCPServer, StreamRequestHandler
from threading import Thread
from typing import Any

HOST = "127.0.0.1"
LONGEST_ERROR = 2000
POLL_S = 0.5
"""Seconds between looks at the input."""


class Player:
    """An agent of NeMo-Gym, a server of the model and the address of the resources."""

    def __init__(self, name: str, host: str, port: str) -> None:
        from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent
        from responses_api_models.openai_model.app import SimpleModelServer

        module = import_module(f"responses_api_agents.{name}.app")
        found = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
        *_, agent = (one for one in found if isinstance(one, type) and issubclass(one, SimpleResponsesAPIAgent))
        self._kinds = {"model": SimpleModelServer, "agent": agent}
        self._resources = {"host": host, "port": port}

    async def play(self, row: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
        """Return the reward of an episode, or its error."""
        from nemo_gym import server_utils as gym
        from omegaconf import OmegaConf
        from uvicorn import Config, Server

        model = {"openai_base_url": variables["OPENAI_BASE_URL"], "openai_api_key": variables["OPENAI_API_KEY"]}
        agent: dict[str, Any] = {"model_server": {"type": "responses_api_models", "name": "model"}}
        agent |= {"resources_server": {"type": "resources_servers", "name": "resources"}}
        settings: dict[str, dict[str, Any]] = {"model": model | {"openai_model": variables["MODEL"]}, "agent": agent}
        addresses = OmegaConf.create({"resources": {"": {"": self._resources}}})
        client = gym.ServerClient(head_server_config=self._resources, global_config_dict=addresses)
        gym.set_global_aiohttp_client(gym.GlobalAIOHTTPAsyncClientConfig())
        servers = []
        for name, kind in self._kinds.items():
            listener = socket.create_server((HOST, 0))
            address = dict(zip(("host", "port"), listener.getsockname(), strict=True))
            addresses[name] = {"": {"": address}}
            config = kind.model_fields["config"].annotation(name=name, entrypoint="", **address, **settings[name])
            server = kind(config=config, server_client=client)
            app = server.setup_webserver()
            server.setup_exception_middleware(app)
            running = Server(Config(app, log_level="critical", lifespan="off")).serve([listener])
            servers.append(asyncio.create_task(running))
        reply = await client.post("agent", "/run", json=row)
        end = await reply.json()
        if not reply.ok or end.get("_ng_failure_class") or end.get("mask_sample"):
            return {"error": f"status {reply.status}: {end}"}
        return {"reward": end["reward"]}


class Episode(StreamRequestHandler):
    """One connection, in a separate process."""

    server: "Episodes"

    def handle(self) -> None:
        self.server.socket.close()  # it is the parent's
        try:
            row, variables = json.loads(self.rfile.readline())
            Thread(target=self._end_with_connection, daemon=True).start()
            answer = asyncio.run(self.server.player.play(row, variables))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        if "error" in answer:
            answer["error"] = answer["error"][:LONGEST_ERROR]
        self.wfile.write(json.dumps(answer).encode())

    def _end_with_connection(self) -> None:
        """End this process when the episode is over, also if the agent blocks its event loop."""
        with suppress(OSError):
            self.connection.recv(1)
        os._exit(1)


class Episodes(ForkingTCPServer):
    """Forks for each connection."""

    max_children, request_queue_size = 256, 256

    def __init__(self, player: Player) -> None:
        super().__init__((HOST, 0), Episode)
        self.player = player

    def service_actions(self) -> None:
        super().service_actions()
        if select.select([sys.stdin], [], [], 0)[0]:
            os._exit(0)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print
    os.environ["RAY_ADDRESS"] = "local"  # an agent's Ray must not join the run's
    try:
        player = Player(*sys.argv[1:])
        with ThreadPoolExecutor() as warm_up:  # loads all modules before the first fork
            warm_up.submit(asyncio.run, player.play({}, defaultdict(str))).exception()
        import_module("nemo_gym.server_utils").global_aiohttp_client_exit()
        episodes = Episodes(player)
        line: dict[str, Any] = {"port": episodes.server_address[1]}
    except Exception as error:
        line = {"error": f"{type(error).__name__}: {error}"[:LONGEST_ERROR]}
    with answers:
        answers.write(json.dumps(line) + "\n")
    if "port" in line:
        episodes.serve_forever(POLL_S)


if __name__ == "__main__":
    main()
