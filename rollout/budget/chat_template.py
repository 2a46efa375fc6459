"""What a tokenizer's chat template does with thoughts, found out by rendering a message."""

from transformers import PreTrainedTokenizerBase

from envs.core.turn_text import CLOSE_THOUGHT, OPEN_THOUGHT


def require_thought_tags(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `ValueError` where neither the tokenizer nor its chat template knows the tags of a thought."""
    vocabulary, template = tokenizer.get_vocab(), str(tokenizer.chat_template or "")
    for tag in (OPEN_THOUGHT, CLOSE_THOUGHT):
        if tag not in vocabulary and tag not in template:
            raise ValueError(
                f"the tokenizer has no thinking tag {tag!r}, neither as a token nor in its chat template: thoughts "
                f"can't be limited; set the budgets' shares to 0 or take a reasoning model"
            )


def closing_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what the chat template puts between a thought and its answer.

    Raises `ValueError` where it does not render a message's `reasoning_content`.
    """
    message = {"role": "assistant", "reasoning_content": "first-part", "content": "second-part"}
    text = str(tokenizer.apply_chat_template([{"role": "user", "content": "-"}, message], tokenize=False))
    _, found, after = text.partition("first-part")
    closing, also, _ = after.partition("second-part")
    if not found or not also or CLOSE_THOUGHT not in closing:
        raise ValueError(
            f"the chat template does not show how a thought is closed (it renders {text[-80:]!r}); "
            f"set rollout.thought.closing, for example to '\\n{CLOSE_THOUGHT}\\n\\n'"
        )
    return closing


def opens_thought(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the prompt opens the thought; else the model itself begins it with the opening tag."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "-"}], add_generation_prompt=True, enable_thinking=True, tokenize=False
    )
    return str(prompt).rstrip().endswith(OPEN_THOUGHT)
