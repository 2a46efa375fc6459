"""A run may begin with a GGUF file. The run converts it once into its folder."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny_models
from support.gguf_file import write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.pipeline.config import read_run_settings
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.finding import Level
from temper.orchestrator.pipeline.gguf_model import with_converted_model
from temper.orchestrator.pipeline.preview import preview_of
from temper.orchestrator.pipeline.profiles.resolve import load_resolved_config
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.preflight.doctor.checks import examine
from temper.orchestrator.tools.preflight.doctor.target import read_target
from temper.orchestrator.tools.preflight.plan.plan import plan_of

pytest.importorskip("gguf")
IDS = torch.tensor([[1, 5, 9, 44, 200]])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.llama(tmp_path_factory.mktemp("original"))


def written(original: Path, path: Path, *, quantized: bool = False, without: str = "none") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(original), AutoTokenizer.from_pretrained(original)
    write_gguf(path, model, tokenizer, quantized=quantized, without=without)
    return path


def settings(path: Path, runs: Path) -> dict[str, Any]:
    return {"name": "mine", "runs_dir": str(runs), "model": {"path": str(path)}}


@pytest.mark.parametrize(("quantized", "difference"), [(False, 0.0), (True, 0.05)])
def test_the_converted_model_computes_and_reads_as_the_file(
    original: Path, tmp_path: Path, quantized: bool, difference: float
) -> None:
    file = written(original, tmp_path / "tiny.gguf", quantized=quantized)
    made = with_converted_model(settings(file, tmp_path / "runs"))["model"]["path"]
    assert Path(made).parent == tmp_path / "runs" / "mine"
    assert RunDir(tmp_path / "runs" / "mine").verify_model(Path(made)) == Path(made)  # no checkpoint with a manifest
    first, second = (AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32) for each in (original, made))
    with torch.no_grad():
        assert float((first(IDS).logits - second(IDS).logits).abs().max()) <= difference
    theirs, ours = AutoTokenizer.from_pretrained(original), AutoTokenizer.from_pretrained(made)
    chat = theirs.apply_chat_template([{"role": "user", "content": "H\u00e9 12?"}], tokenize=False)
    assert ours.apply_chat_template([{"role": "user", "content": "H\u00e9 12?"}], tokenize=False) == chat
    assert ours(chat + "<think>7</think>").input_ids == theirs(chat + "<think>7</think>").input_ids
    assert (ours.eos_token, ours.pad_token) == (theirs.eos_token, theirs.pad_token)


def test_a_file_is_converted_once_and_a_changed_file_anew(original: Path, tmp_path: Path) -> None:
    """A folder with one GGUF file works like the file. The resolved configuration names the converted folder."""
    file = written(original, tmp_path / "models" / "tiny.gguf")
    path = tmp_path / "run.yaml"
    path.write_text(f"{{name: mine, profile: cpu, envs: {{math: {{}}}}, model: {{path: {file.parent}}}}}")
    made = [load_resolved_config(path, [f"runs_dir={tmp_path}"]).model.path for _ in range(2)]
    assert made[0] is not None
    weights = Path(made[0]) / "model.safetensors"
    assert made[0] == made[1]
    before = weights.stat().st_mtime_ns
    os.utime(file, ns=(1, 1))
    assert load_resolved_config(path, [f"runs_dir={tmp_path}"]).model.path != made[0]
    assert weights.stat().st_mtime_ns == before


def test_a_package_gives_the_file_in_its_folder(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(original, tmp_path / "tiny_weights" / "tiny.gguf")
    (tmp_path / "tiny_weights" / "__init__.py").write_text("raise RuntimeError('never imported')")
    with pytest.raises(FileNotFoundError, match="tiny-weights"):
        with_converted_model({"name": "mine", "runs_dir": str(tmp_path), "model": {"path": "package:tiny_weights"}})
    monkeypatch.syspath_prepend(tmp_path)
    made = with_converted_model({"name": "mine", "runs_dir": str(tmp_path), "model": {"path": "package:tiny_weights"}})
    assert (Path(made["model"]["path"]) / "model.safetensors").is_file()


def test_the_model_of_a_judge_is_converted_too(original: Path, tmp_path: Path) -> None:
    """One with a URL is the name of a model on a server."""
    file = str(written(original, tmp_path / "tiny.gguf"))
    judges = {"rows": {"judge": {"model": file}}, "math": {"judge": {"model": file, "url": "http://127.0.0.1:1/v1"}}}
    found = with_converted_model({"name": "mine", "runs_dir": str(tmp_path), "envs": judges | {"code": {}}})["envs"]
    assert (Path(found["rows"]["judge"]["model"]) / "model.safetensors").is_file()
    assert found["math"] == judges["math"]


def test_what_is_no_model_is_refused(original: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF no more")
    with pytest.raises(ValueError, match="broken"):
        with_converted_model(settings(broken, tmp_path))
    assert not list((tmp_path / "mine").iterdir())
    written(original, tmp_path / "tiny.gguf")
    with pytest.raises(ValueError, match=f"{tmp_path}"):
        with_converted_model(settings(tmp_path, tmp_path))
    with pytest.raises(FileNotFoundError, match="temper run"):
        _ = ModelSource(path=str(broken)).folder


def test_a_part_of_a_split_model_is_refused_and_tied_embeddings_are_whole(original: Path, tmp_path: Path) -> None:
    part = written(original, tmp_path / "part.gguf", without="model.layers.1.")
    with pytest.raises(ValueError, match="part"):
        with_converted_model(settings(part, tmp_path / "runs"))
    assert not list((tmp_path / "runs" / "mine").iterdir())
    tied = written(original, tmp_path / "tied.gguf", without="lm_head.")
    made = with_converted_model(settings(tied, tmp_path / "runs"))["model"]["path"]
    assert AutoModelForCausalLM.from_pretrained(made).config.tie_word_embeddings


@pytest.mark.parametrize("name", ["tiny.gguf", "."])
def test_a_preview_knows_the_shape_and_converts_nothing(original: Path, tmp_path: Path, name: str) -> None:
    """`doctor` warns, since nothing of the converted model can be checked. A plan counts it as the model itself."""
    file = written(original, tmp_path / "models" / "tiny.gguf")
    run = tmp_path / "run.yaml"
    run.write_text(f"{{name: mine, runs_dir: {tmp_path}, envs: {{math: {{}}}}, model: {{path: {file.parent / name}}}}}")
    found = preview_of(read_run_settings(run, []))
    assert found.conversions == (str(file),)
    assert not found.downloads
    assert found.ranks == 1
    model = next(one for one in examine(read_target(run, [])) if one.where == "model")
    assert model.level is Level.WARNING
    assert f"{parameters(original):,}" in model.what
    plan = plan_of(run, [], gpus="1x24G", assumptions=Assumptions())
    assert plan.model.parameters == parameters(original)
    assert not (tmp_path / "mine").exists()
    load_resolved_config(run, [])
    assert not preview_of(read_run_settings(run, [])).conversions


def test_a_preview_of_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF no more")
    given = {"name": "mine", "envs": {"math": {}}, "model": {"path": str(tmp_path / "broken.gguf")}}
    with pytest.raises(ValueError, match="broken"):
        preview_of(given)


def parameters(original: Path) -> int:
    return AutoModelForCausalLM.from_pretrained(original).num_parameters()
