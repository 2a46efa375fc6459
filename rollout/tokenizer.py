"""The tokenizer of a model directory."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase


def load_tokenizer(model_dir: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model directory.

    Raises `FileNotFoundError` where there is no such directory and `ValueError` where it holds no tokenizer, no chat
    template or no end-of-turn token.
    """
    if not (model_dir / "config.json").is_file():
        raise FileNotFoundError(f"{model_dir} is no model directory: it has no config.json; run `init` or name another")
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{model_dir} holds no tokenizer that can be loaded; save one beside the model ({error})"
        ) from error
    if not tokenizer.chat_template:
        raise ValueError(
            f"the tokenizer of {model_dir} has no chat template; save one as chat_template.jinja beside it"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {model_dir} has no eos_token; the end of a turn would never be seen")
    return tokenizer


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id that fills up short sequences: the padding token, else the end of a turn."""
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
