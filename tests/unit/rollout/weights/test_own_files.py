"""Which files of a folder belong to its model or checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from temper.rollout.weights.own_files import MANIFEST, own_files
from temper.rollout.weights.weight_files import require_complete, tensor_names


def write_model(folder: Path) -> None:
    (folder / "learner").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for name in ("model.safetensors", "learner/optimizer-00000.safetensors"):
        save_file({"weight": torch.zeros(3)}, folder / name)


def write_manifest(folder: Path) -> None:
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    files = {name: {"bytes": 0, "sha256": ""} for name in names}
    (folder / MANIFEST).write_text(json.dumps({"files": files}))


def test_hidden_files_do_not_belong_to_a_model(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "._model.safetensors").write_text("of another file system")
    assert require_complete(tmp_path) == 3
    assert tensor_names(tmp_path) == ["weight"]


def test_only_listed_files_belong_to_a_checkpoint(tmp_path: Path) -> None:
    write_model(tmp_path)
    write_manifest(tmp_path)
    for name in ("model copy.safetensors", "learner/optimizer-00000 (1).safetensors"):
        (tmp_path / name).write_text("foreign")
    assert require_complete(tmp_path) == 3
    assert [path.name for path in own_files(tmp_path, "learner/optimizer-*.safetensors")] == [
        "optimizer-00000.safetensors"
    ]


@pytest.mark.parametrize("text", ["[]", '{"files": ["a"]}', '{"files": {"a": 1}}', '{"files": {"a": {}}}', "{"])
def test_another_file_of_the_name_is_no_manifest(tmp_path: Path, text: str) -> None:
    write_model(tmp_path)
    (tmp_path / MANIFEST).write_text(text)
    assert [path.name for path in own_files(tmp_path, "*.safetensors")] == ["model.safetensors"]
