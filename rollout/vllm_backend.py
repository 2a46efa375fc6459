"""vLLM in a rollout worker: its engine, and its endpoint for agents.

The functions are pickled into the worker's process. They import vLLM there, because that takes 10 to 20 s.
"""

from collections.abc import Callable
from pathlib import Path

from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.protocol import Engine
from temper.rollout.episodes.agent_session import AgentServer
from temper.rollout.trajectory import WeightVersion


async def make_engine(
    model_dir: Path,
    config: EngineConfig,
    *,
    version: WeightVersion,
    ends: tuple[int, ...],
    tags: ThinkingTags | None,
    record_experts: bool,
    sleeps: bool,
    on_pass: Callable[[int], None],
) -> Engine:
    """See `MakeEngine`."""
    from temper.rollout.engines.vllm_engine import VllmEngine

    engine = VllmEngine(
        model_dir,
        config,
        version=version,
        ends=ends,
        tags=tags,
        record_experts=record_experts,
        sleeps=sleeps,
        on_pass=on_pass,
    )
    await engine.start()
    return engine


def make_agent_server(engine: Engine, model_dir: Path, thinking: ThinkingConfig) -> AgentServer:
    """See `MakeAgentServer`. The engine must be of `make_engine`."""
    from temper.rollout.engines.vllm_engine import VllmEngine
    from temper.rollout.serving.agent_endpoint import VllmAgentServer

    assert isinstance(engine, VllmEngine)
    return VllmAgentServer(engine.llm, model_dir, thinking)
