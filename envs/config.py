"""Settings of an environment of a run."""

from dataclasses import dataclass, field
from typing import Any

from temper.envs.core.judge_config import JudgeConfig
from temper.envs.core.setting import free, immutable, scheduled
from temper.envs.core.task import THREADS, TOOL_TIMEOUT_S, Credit
from temper.envs.data.config import DataConfig, DropOverlap, OnError
from temper.envs.data.split import SplitConfig


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """One environment of a mixture."""

    share: float = scheduled(1.0, unit="share")
    """Relative share of the groups."""
    preset: str | None = immutable(None)
    """Benchmark whose settings fill those that are not set here. For evaluation, unless it has data."""
    kind: str | None = immutable(None)
    """Environment id or module, if the name of this entry is not one."""
    options: dict[str, Any] = immutable({})
    """Options of the environment, which select a member of its family."""
    data: DataConfig | None = immutable(None)
    """Rows of real tasks: a file, a folder or a hub name. Null generates tasks."""
    eval_data: DataConfig | None = immutable(None)
    """Rows of evaluation, all held out, such as the official test set. Null holds out training tasks by `split`."""
    split: SplitConfig = field(default_factory=SplitConfig)
    drop_overlap: DropOverlap = immutable("none")
    """Training rows to drop for overlap with evaluation prompts: none, exact, or ngrams (13 words in a row)."""
    format: str | None = immutable(None)
    """Row format. Null detects it."""
    level: int = immutable(1)
    """Difficulty of generated tasks, from 1."""
    thinking: bool = immutable(True)
    """Whether the model thinks before it answers."""
    on_error: OnError = immutable("raise")
    """Action on a bad row: raise or skip."""
    max_turns: int | None = immutable(None)
    """Assistant turns after which an episode is truncated. Null uses the environment's limit."""
    credit: Credit = immutable("all")
    """Credit for code that passes some tests: all (none) or fraction (their share)."""
    tools: list[str] = immutable([])
    """Tools: calculator, python, your typed functions as module.function or file.py:function, or the tools of an MCP server as
    `mcp:COMMAND` or `mcp:URL`. `mcp-per-episode:` gives each episode its own session.
    """
    tool_timeout_s: float = free(TOOL_TIMEOUT_S, unit="seconds")
    """Seconds after which a call of your function or of an MCP server returns an error to the model."""
    reward: str | None = immutable(None)
    """Your reward function, (answer, row) -> number or numbers by name, as module.function or file.py:function. Null uses
    the environment's score. With another name than an environment's, the kind is `rows`.
    """
    judge: JudgeConfig | None = immutable(None)
    """Another model that scores or compares answers, as the part `judge` of the reward. Null asks none. With another name than
    an environment's, the kind is `rows`.
    """
    agent: str | None = immutable(None)
    """Your agent, which plays the episodes through an endpoint of the model: (episode) -> answer, number, or numbers by name,
    as module.function or file.py:function. An answer is scored as the model's own.
    """
    weights: dict[str, float] = immutable({})
    """Weight of each reward part. Empty uses correctness alone, or the sum of the parts of your function or agent."""
    length_limit: int | None = immutable(None, unit="characters")
    """Characters of an episode above which the part `length` falls. Null omits the part."""
    threads: int = free(THREADS)
    """Environment steps that run at once in a rollout worker. Others wait, outside their episodes' deadlines."""
