"""GGUF files as model directories. transformers reads them with the package `gguf`."""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging


def gguf_config(file: Path) -> PretrainedConfig:
    """Return the configuration of a model from the header of its GGUF file. Raise `ValueError` if it can't be read."""
    try:
        return AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name, trust_remote_code=False)
    except Exception as error:  # a broken file may raise anything
        raise ValueError(f"{file} can't be read as a model: {error}") from error


def convert_gguf(file: Path, directory: Path) -> None:
    """Write the model, the tokenizer and the chat template of a GGUF file, quantized weights as bfloat16.

    Raise `ValueError` for a file that transformers can't read, and for a part of a split model.
    """
    place, name = str(file.parent), file.name
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name, trust_remote_code=False)
        model, loaded = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=name, dtype=_dtype(file), trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # a broken file may raise anything
        raise ValueError(f"{file} can't be read as a model: {error}") from error
    if missing := sorted(loaded["missing_keys"]):  # transformers would fill them with random numbers
        raise ValueError(
            f"{file} lacks {len(missing)} weights, such as {missing[0]}; join the parts of a split model with llama-gguf-split"
        )
    model.hf_quantizer = None  # else transformers refuses to save, though the weights are plain now
    del model.config.quantization_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    _drop_tokens_beyond(model.get_input_embeddings().num_embeddings, directory / "tokenizer.json")


def _drop_tokens_beyond(size: int, file: Path) -> None:
    """Remove the tokens without a row in the embedding. transformers adds `<|endoftext|>` to a vocabulary that lacks it."""
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < size]
    file.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=2), encoding="utf-8")


def _dtype(file: Path) -> torch.dtype:
    from gguf import GGMLQuantizationType, GGUFReader

    kinds = {tensor.tensor_type for tensor in GGUFReader(file).tensors}
    return torch.float32 if kinds == {GGMLQuantizationType.F32} else torch.bfloat16
