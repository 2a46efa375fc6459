"""The model of a checkpoint's averages, by hand-made training state."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models
from transformers import AutoModelForCausalLM

from temper.learner.engine.saved_state import write_averaged_model
from temper.learner.training_state import STATE_FOLDER, CheckpointFacts


def weights(directory: Path) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def write_checkpoint_with_averages(checkpoint: Path, *, frozen: str = "norm") -> Path:
    """A checkpoint of two ranks in bfloat16. The averages are the negative weights. Some parameters are not trained."""
    shards: list[dict[str, torch.Tensor]] = [{"step": torch.tensor(3.0)}, {}]
    places: list[dict[str, str]] = [{"ranks": "2"}, {"ranks": "2"}]
    for name, weight in weights(checkpoint).items():
        first, half = 0, weight.numel() // 2
        for shard, place, part in zip(shards, places, weight.float().flatten().split([half, half]), strict=True):
            if frozen not in name:
                shard[f"ema/{name}"] = -part
                place[f"ema/{name}"] = json.dumps([first, list(weight.shape)])
            first += half
    (checkpoint / STATE_FOLDER).mkdir()
    for number, (shard, place) in enumerate(zip(shards, places, strict=True)):
        save_file(shard, checkpoint / STATE_FOLDER / f"optimizer-{number:05d}.safetensors", metadata=place)
    CheckpointFacts(steps=3, bf16=True, start=".").write(checkpoint)
    return checkpoint


@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3_tied", "nemotron_h_moe"])
def test_the_averages_take_the_place_of_the_trained_weights(kind: str, tmp_path: Path) -> None:
    """Experts too, which are stacked in training and single in files, and a tied embedding."""
    model: Path = getattr(tiny_models, kind)(tmp_path / "model")
    file = model / "model.safetensors"
    halves = {name: tensor.bfloat16() if "bias" not in name else tensor for name, tensor in load_file(file).items()}
    save_file(halves, file, metadata={"format": "pt"})
    (model / "config.json").write_text(
        json.dumps(json.loads((model / "config.json").read_text()) | {"dtype": "bfloat16"})
    )
    before, checkpoint, content = weights(model), write_checkpoint_with_averages(model), file.read_bytes()
    (target := tmp_path / "average").mkdir()
    write_averaged_model(checkpoint, target)
    assert file.read_bytes() == content
    after = weights(target)
    assert after.keys() == before.keys()
    for name, weight in before.items():
        assert after[name].dtype == weight.dtype
        assert torch.equal(after[name], weight if "norm" in name else -weight), name
    assert sorted(path.name for path in target.iterdir()) == sorted(
        path.name for path in model.iterdir() if path.is_file()
    )


def test_averages_that_would_be_left_out_are_refused(tmp_path: Path) -> None:
    """If a rank's files are missing, or the model's file stacks or names a tensor otherwise."""
    for change, named in (("rank", "1 of 2 ranks"), ("tensor", "lm_head")):
        checkpoint = write_checkpoint_with_averages(tiny_models.qwen3(tmp_path / change))
        if change == "rank":
            (checkpoint / STATE_FOLDER / "optimizer-00001.safetensors").unlink()
        else:
            tensors = load_file(checkpoint / "model.safetensors")
            tensors["other.weight"] = tensors.pop("lm_head.weight")
            save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
        (target := tmp_path / f"{change}-averaged").mkdir()
        with pytest.raises(ValueError, match=named):
            write_averaged_model(checkpoint, target)
