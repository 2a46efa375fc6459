"""A server of OpenEnv that pays for the length of a message: `python openenv_echo.py PORT`. Needs openenv-core alone."""

import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Say(Action):
    message: str


class Echo(Observation):
    echoed: str


class EchoEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, turns: int = 1000, **_) -> Echo:
        self.seed, self.turns = seed, turns
        return Echo(echoed=f"ready {seed}")

    def step(self, action: Say, **_) -> Echo:
        if action.message == "fail":
            raise RuntimeError("no such luck")
        self.turns -= 1
        done = action.message == "end" or not self.turns
        return Echo(echoed=f"{action.message} {self.seed}", reward=len(action.message) / 10, done=done)

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    app = create_fastapi_app(EchoEnvironment, Say, Echo, max_concurrent_envs=256)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
