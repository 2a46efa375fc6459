"""The endpoint of agents with vLLM's routes, whose turns a scripted engine writes: no weights, and no engine process."""

import asyncio
import json
from pathlib import Path
from typing import Any

import uvicorn
from support.bound import bound
from support.replay_engine import ReplayEngine
from transformers import PreTrainedTokenizerBase

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.task import Task
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.vllm_settings import prepare_environment
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.runner import EpisodeRunner
from temper.rollout.episodes.turn_sampler import TurnSampler
from temper.rollout.trajectory import Trajectory

LONGEST, MOST_REQUESTS = 100_000, 100
LIMITS = EpisodeLimits(turn_tokens=400, total_tokens=LONGEST, timeout_s=300.0)
SHAPE = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 32}


class EngineFrontend:
    """The parts of vLLM's engine that its routes use besides `generate`."""

    errored = False

    def __init__(self, model: Path) -> None:
        prepare_environment()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.renderers import renderer_from_config
        from vllm.v1.engine.input_processor import InputProcessor

        arguments = AsyncEngineArgs(model=str(model), dtype="float32", max_model_len=LONGEST)
        self.vllm_config = arguments.create_engine_config()
        self.model_config = self.vllm_config.model_config
        self.renderer = renderer_from_config(self.vllm_config)
        self.input_processor = InputProcessor(self.vllm_config, self.renderer)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_tokenizer(self) -> Any:
        return self.renderer.tokenizer

    def check_admission(self, _: int) -> None:
        return


class ScriptedEndpoint:
    """Plays agents with the turns of an engine. `place` becomes the model directory."""

    def __init__(self, place: Path, tokenizer: PreTrainedTokenizerBase, engine: ReplayEngine) -> None:
        from temper.rollout.serving.agent_endpoint import VllmAgentServer

        tokenizer.save_pretrained(place)
        model = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": len(tokenizer), **SHAPE}
        (place / "config.json").write_text(
            json.dumps(model | {"max_position_embeddings": LONGEST, "num_key_value_heads": 1}), encoding="ascii"
        )
        config = ThinkingConfig()
        self._loop = asyncio.Runner()
        self._agents = VllmAgentServer(EngineFrontend(place), place, config)
        sampler = TurnSampler(engine, ThinkingTags.find(tokenizer), config, turn_tokens=LIMITS.turn_tokens)
        self._runner = EpisodeRunner(sampler=sampler, renderer=Renderer(tokenizer), limits=LIMITS, agents=self._agents)

    def play(
        self, task: Task, agent: str | None, *, env: str | EnvDefinition = "math", max_turns: int = MOST_REQUESTS
    ) -> Trajectory:
        return self._loop.run(self._runner.run(bound(task, env, agent=agent, max_turns=max_turns), seed=1))

    @property
    def server(self) -> uvicorn.Server:
        """The running server, after the first episode."""
        assert self._agents._server is not None
        return self._agents._server

    def close(self) -> None:
        self._loop.run(self._agents.close())
        self._loop.close()
