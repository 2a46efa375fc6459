from pathlib import Path

import pytest
from support import tiny_models
from transformers import PreTrainedModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Nemotron-H, named model."""
    from unit.learner.test_worker import tiny_nemotron

    folder = tmp_path_factory.mktemp("learner")
    tiny_nemotron().save_pretrained(folder / "model")
    (folder / "model" / "tokenizer.json").write_text("{}", encoding="ascii")
    return folder


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A tiny Llama, and another that began elsewhere."""
    return tiny_models.two_llamas(tmp_path_factory.mktemp("model"))
