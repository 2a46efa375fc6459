"""What a run declares of a model's turns stands in the files of the model that it begins with."""

import json
from pathlib import Path

import pytest

from envs.core.turn_text import Tags
from learner.models.fresh import byte_tokenizer
from orchestrator.run.declared_model import write_declared
from orchestrator.settings.run_config import ModelConfig
from rollout.formats.find import find_format
from rollout.tokenizer import DeclaredTurns, load_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<why>{{ m.reasoning_content }}</why>{% endif %}"
    "{{ m.content }}<|pad|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def base_model(folder: Path) -> Path:
    """A model directory whose tokenizer has no chat template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_base_model_is_told_its_template_its_end_of_a_turn_and_its_tags(tmp_path: Path) -> None:
    source = base_model(tmp_path / "base")
    with pytest.raises(ValueError, match=r"no chat template; name a file with one as model\.chat_template"):
        load_tokenizer(source)
    (tmp_path / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    config = ModelConfig(
        path=str(source),
        chat_template=str(tmp_path / "chat.jinja"),
        end_of_turn=["<|pad|>"],
        thought_tags=["<why>", "</why>"],
    )
    made = tmp_path / "made"
    made.mkdir()
    write_declared(source, made, config.declared())
    tokenizer = load_tokenizer(made)
    form = find_format(tokenizer)
    assert (form.tags, form.closing) == (Tags(opening="<why>", closing="</why>"), "</why>")
    assert (form.ends, form.end_ids, tokenizer.eos_token) == (("<|pad|>",), (tokenizer.pad_token_id,), "<|pad|>")
    assert (made / "model.safetensors").read_bytes() == b"weights"
    assert json.loads((made / "generation_config.json").read_text())["eos_token_id"] == list(form.end_ids)
    assert find_format(load_tokenizer(source, config.declared())) == form


def test_an_end_of_a_turn_that_is_no_token_or_that_the_template_does_not_write_is_refused(tmp_path: Path) -> None:
    source = base_model(tmp_path)
    for end, said in (("<stop>", "is no token"), ("<|im_start|>", "the chat template ends turns with")):
        declared = DeclaredTurns(chat_template=TEMPLATE, end_of_turn=(end,))
        with pytest.raises(ValueError, match=said):
            find_format(load_tokenizer(source, declared))


def test_what_is_declared_needs_a_model_and_a_file() -> None:
    with pytest.raises(ValueError, match="without a path leave them out"):
        ModelConfig(end_of_turn=["x"])
    with pytest.raises(ValueError, match="what opens a thought, and what closes it"):
        ModelConfig(path="m", thought_tags=["<why>"])
    with pytest.raises(FileNotFoundError, match="is no file"):
        ModelConfig(path="m", chat_template="nowhere.jinja").declared()
