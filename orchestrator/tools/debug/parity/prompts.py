"""The prompts: tasks of an environment, lines of a file, or built-in questions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from temper.envs.binding import BoundEnv
from temper.envs.source import distinct_tasks, open_source
from temper.orchestrator.tools.debug.parity.answers import Prompt
from temper.rollout.episodes.renderer import Renderer

MOST = 8
"""Maximum number of prompts."""
BUILTIN = (
    "What is 17 times 23? Think step by step.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Which is larger, 9.9 or 9.11, and why?",
    "A train leaves at 14:25 and arrives at 17:05. How long does it take?",
    "Name three causes of the tides, the most important one first.",
    "Reverse the string 'parity' and count its vowels.",
)


def builtin_prompts(tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """Return the built-in questions in the model's chat template."""
    return [_rendered(tokenizer, _question(text)) for text in BUILTIN]


def env_prompts(env: BoundEnv, renderer: Renderer, *, seed: int) -> list[Prompt]:
    """Return the prompts of the first training tasks of an environment. Raise as making its tasks does."""
    return [renderer.prompt_ids(task) for task in distinct_tasks(open_source(env, split="train", seed=seed), MOST)]


def file_prompts(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """Return the first `MOST` prompts of a file, one per line: text, or in a .jsonl file an object with `prompt` or `messages`.

    Raise `FileNotFoundError` if the file does not exist, `ValueError` for a line without a prompt.
    """
    if not path.is_file():
        raise FileNotFoundError(f"--prompts {path}: file not found")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()][:MOST]
    if not lines:
        raise ValueError(f"--prompts {path} is empty. Write one prompt per line")
    if path.suffix != ".jsonl":
        return [_rendered(tokenizer, _question(line)) for line in lines]
    return [_rendered(tokenizer, _messages(line, f"{path}:{number}")) for number, line in enumerate(lines, start=1)]


def _question(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _messages(line: str, place: str) -> list[dict[str, Any]]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"--prompts {place} is not JSON: {error}") from error
    match row:
        case {"messages": list(messages)}:
            return messages
        case {"prompt": str(text)}:
            return _question(text)
    raise ValueError(f'--prompts {place}: use {{"prompt": text}} or {{"messages": [...]}}, not {line[:80]}')


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]]) -> Prompt:
    """Return messages in the chat template, up to the beginning of the answer."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def require_context(prompts: Sequence[Prompt], *, tokens: int, longest: int) -> None:
    """Raise `ValueError` if a prompt, its answer and the one extra token for scoring do not fit into the context."""
    if tokens < 1:
        raise ValueError(f"--tokens {tokens}: use 1 or more")
    most = max(map(len, prompts))
    if most + tokens >= longest:
        raise ValueError(
            f"a prompt of {most} tokens and --tokens {tokens} leave no token of rollout.engine.max_model_len={longest} for "
            f"scoring. Raise it, or use shorter prompts"
        )
