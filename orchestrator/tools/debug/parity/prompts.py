"""The prompts: tasks of an environment, or built-in questions."""

from collections.abc import Sequence

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
    return [_rendered(tokenizer, text) for text in BUILTIN]


def env_prompts(env: BoundEnv, renderer: Renderer, *, seed: int) -> list[Prompt]:
    """Return the prompts of the first training tasks of an environment. Raise as making its tasks does."""
    return [renderer.prompt_ids(task) for task in distinct_tasks(open_source(env, split="train", seed=seed), MOST)]


def _rendered(tokenizer: PreTrainedTokenizerBase, question: str) -> Prompt:
    """Return a question in the chat template, up to the beginning of the answer."""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
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
