"""The tokenizer of a model directory, and the turn format that a run declares for it.

When a run saves its model (`orchestrator/run/declared_model.py`), the declarations become tokenizer files:
`chat_template.jinja`, and `eos_token`, `end_of_turn`, `thinking_tags` and `tool_calls` in `tokenizer_config.json`. Loading
the tokenizer restores them.
"""

import json
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerBase

from temper.rollout.declared_turns import AS_IT_IS, DeclaredTurns


def load_tokenizer(model_dir: Path, declared: DeclaredTurns = AS_IT_IS) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model directory, with the declarations applied.

    Raises `FileNotFoundError` without a directory, and `ValueError` without a tokenizer, a chat template or an end-of-turn
    token, or if the tokenizer has more ids than the embedding.
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
    _require_embedded(tokenizer, model_dir)
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


def _require_embedded(tokenizer: PreTrainedTokenizerBase, model_dir: Path) -> None:
    """Raise `ValueError` if a text could have an id without a row in the embedding.

    Tokens with a name that only some models have, such as `image_token`, never come from a text, because they are escaped.
    Text models of Gemma 3 have one beyond their embedding.
    """
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    named = tokenizer.special_tokens_map.items()
    escaped = {token for name, token in named if name not in PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES}
    ids = tokenizer.get_vocab().items()
    beyond = [(number, token) for token, number in ids if size and number >= size and token not in escaped]
    if beyond:
        number, token = min(beyond)
        raise ValueError(
            f"the tokenizer of {model_dir} has the token {token!r} with id {number}, but the embedding has vocab_size={size} "
            f"in config.json; call model.resize_token_embeddings({max(beyond)[0] + 1}) in transformers and save the model, "
            f"or remove the {len(beyond)} tokens beyond it"
        )


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the padding token's id, else the end-of-turn id."""
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
