"""What can be known at the start is said at the start, before a file is written."""

import json
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny_models

from temper.orchestrator.__main__ import main
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.continuation import check_continuation
from temper.orchestrator.run.folder import RunDir
from temper.rollout.weights.weight_files import require_whole

DEMO = "configs/demo.yaml"
ROW = '{"question": "What is 1 + 1?", "answer": "#### 2"}\n'
CHAT = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}\n'


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with data, right and wrong, and with environments of one's own that can't be imported."""
    rows = [ROW.replace("1 + 1", f"1 + {n}") for n in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    (tmp_path / "torn.jsonl").write_text("".join(rows) + '{"question": "What is')
    (tmp_path / "long.jsonl").write_text("".join(rows) + ROW.replace("1 + 1", "1 + " * 2000))
    (tmp_path / "chats.jsonl").write_text(CHAT + '{"messages": "Hi"}\n')
    (tmp_path / "pairs.jsonl").write_text(CHAT)
    (tmp_path / "no_import.py").write_text("import a_library_that_is_not_there\n")
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("envs.math.data={0}/none.jsonl", "no data file {0}/none.jsonl"),
        ("envs.math.data={0}/torn.jsonl", "{0}/torn.jsonl:65: not a JSON object"),
        ("envs.math.data={0}/long.jsonl", "1 of 65 rows leave no token for an answer"),
        ("sft.data={0}/none.jsonl", "none.jsonl"),
        ("sft.data={0}/chats.jsonl", "{0}/chats.jsonl:2:"),
        ("stages=[init,dpo] dpo.data={0}/pairs.jsonl", "{0}/pairs.jsonl:1:"),
        ("stages=[init,dpo,dpo] dpo-2.data={0}/none.jsonl", "none.jsonl"),
        ("envs.no_import.share=1", "environment 'no_import' can't be imported (ModuleNotFoundError: No module named"),
        ("model.path={0}/none", "{0}/none is no model directory"),
        ("rl.step=7", "unknown key 'step'; did you mean 'steps'?\n"),
    ],
)
def test_a_mistake_in_files_is_said_at_once_and_leaves_nothing_behind(
    files: Path, overrides: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(files)
    began = time.monotonic()
    assert main(["run", DEMO, f"runs_dir={files}/runs", "name=job", *overrides.format(files).split()]) == 2
    assert time.monotonic() - began < 30  # without an engine
    assert said.format(files) in capsys.readouterr().err
    assert not (files / "runs").exists()


def test_a_disk_that_can_not_hold_a_checkpoint_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = ["model.fresh.hidden_size=65536", "model.fresh.intermediate_size=1048576", "model.fresh.pattern=----"]
    assert main(["run", DEMO, f"runs_dir={tmp_path}/runs", "name=job", *huge]) == 1
    assert "bytes free and a checkpoint of" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_model_directory_is_whole_or_says_what_it_lacks(tmp_path: Path) -> None:
    model = tiny_models.llama(tmp_path / "model")
    assert require_whole(model) > 0
    weights = model / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-4])
    with pytest.raises(ValueError, match=rf"has {len(content) - 4} bytes and should have {len(content)}"):
        require_whole(model)
    weights.write_bytes(content[:100])
    with pytest.raises(ValueError, match="not a whole safetensors file: it has 100 bytes"):
        require_whole(model)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks \*.safetensors"):
        require_whole(model)


def test_an_index_tells_which_files_a_model_must_have(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("a", "b"):
        head = json.dumps({name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
        (tmp_path / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(24))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    assert require_whole(tmp_path) == 12
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "c": "b.safetensors"}}))
    with pytest.raises(ValueError, match="b.safetensors lacks c"):
        require_whole(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "c": "c.safetensors"}}))
    with pytest.raises(FileNotFoundError, match="lacks 1 of its 2 weight files: c.safetensors"):
        require_whole(tmp_path)


def test_rows_of_data_without_demonstrations_are_no_supervised_data(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", DEMO, f"runs_dir={files}/runs", "name=job", f"envs.math.data={files}/rows.jsonl"]) == 2
    assert "'math' has no demonstrations (a row of data comes without" in capsys.readouterr().err


def test_a_run_that_trained_nothing_is_not_held_by_a_model_that_it_shall_not_have_any_more(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunDir(files / "runs" / "job")
    folder.open()
    for name in ("first", "second"):
        (files / name).mkdir()
        (files / name / "notes.txt").write_text(name)
    given = [f"runs_dir={files}/runs", "name=job"]
    check_continuation(load_config(Path(DEMO), [*given, f"model.path={files}/first"]), folder)
    folder.store(replace(folder.state(), done={"init": 0}, model=f"{files}/first"))
    folder.close()
    assert main(["run", DEMO, *given, f"model.path={files}/second"]) == 2
    assert f"{files}/second is no model directory" in capsys.readouterr().err


def test_a_stage_does_not_go_on_from_checkpoints_of_which_the_run_knows_nothing(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = files / "runs" / "job" / "checkpoints" / "rl"
    (foreign / "000025").mkdir(parents=True)
    assert main(["run", DEMO, f"runs_dir={files}/runs", "name=job"]) == 2
    assert f"{foreign} has checkpoints of which the run knows nothing" in capsys.readouterr().err
    assert [path.name for path in foreign.parent.parent.iterdir()] == ["checkpoints"]
