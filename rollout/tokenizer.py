"""The tokenizer of a model directory, and the turn format that a run declares for it.

When a run saves its model (`orchestrator/run/declared_model.py`), the declarations become tokenizer files:
`chat_template.jinja`, and `eos_token`, `end_of_turn`, `thinking_tags` and `tool_calls` in `tokenizer_config.json`. Loading
the tokenizer restores them.
"""

from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerBase

from temper.rollout.config import AS_IT_IS, DeclaredTurns


def load_tokenizer(model_dir: Path, declared: DeclaredTurns = AS_IT_IS) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model directory, with the declarations applied.

    Raises `FileNotFoundError` without a directory, and `ValueError` without a tokenizer, a chat template or an end-of-turn
    token.
    """
    if not (model_dir / "config.json").is_file():
        raise FileNotFoundError(
            f"{model_dir} is not a model directory: it has no config.json; run `init` or use another directory"
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model_dir, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"{model_dir} holds no tokenizer that can be loaded; save one in it ({error})") from error
    tokenizer.chat_template = declared.chat_template or tokenizer.chat_template
    for end in declared.end_of_turn:
        if end not in tokenizer.get_vocab():
            raise ValueError(
                f"model.end_of_turn has {end!r}, which is not a token of the tokenizer of {model_dir}; it must be one"
            )
    if declared.end_of_turn:
        tokenizer.eos_token = declared.end_of_turn[0]
    tokenizer.init_kwargs |= declared.config()
    if not tokenizer.chat_template:
        raise ValueError(
            f"the tokenizer of {model_dir} has no chat template; set model.chat_template to a file with one, or save it as "
            f"chat_template.jinja with the tokenizer"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {model_dir} has no eos_token; set model.end_of_turn")
    return tokenizer


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the padding token's id, else the end-of-turn id."""
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
