"""Hub names: downloads, commits, and errors without a network."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.hub_server import served

from temper.envs.presets.catalog import PRESETS

ROWS = "".join(json.dumps({"problem": f"{n}+1?", "solution": f"#### {n + 1}"}) + "\n" for n in range(3)).encode()
CARD = b"---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: train, path: main/train*}\n"
CARD += b"  - {split: test, path: main/test*}\n- config_name: other\n  data_files: other/*\n---\n"
GSM = {
    "README.md": CARD,
    "main/train.jsonl": ROWS,
    "main/test.csv": b"problem,solution\n7+1?,#### 8\n",
    "other/all.jsonl": ROWS,
    "gsm8k.py": b"raise SystemExit('code of the hub was run')",
}
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "generation_config.json": b"{}",
    "model.safetensors": b"weights",
    "modeling_own.py": b"raise SystemExit('code of the hub was run')",
    "pytorch_model.bin": b"pickled",
    "original/consolidated.safetensors": b"again",
    "README.md": b"A model.",
}
REPOS = {"datasets/openai/gsm8k": GSM, "models/Qwen/Tiny": MODEL}
ASK = """
import json, os, sys
from pathlib import Path
from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.presets.catalog import with_preset
from temper.envs.source import distinct_tasks, open_source
from temper.orchestrator.config.schema import to_settings
from temper.envs.data.config import DataConfig
from temper.envs.data.rows import read_rows
from temper.orchestrator.config.model_source import ModelSource

def answer(kind, said):
    try:
        if kind == "rows":
            return read_rows(DataConfig(**said), parse=lambda row, number: row, on_error="raise")[0]
        if kind == "model":
            return str(ModelSource(**said).folder)
        if kind == "preset":
            settings = to_settings(EnvConfig, with_preset("it", said))
            tasks = distinct_tasks(open_source(bind("it", settings), split="heldout", seed=1), None)
            return [task.messages[-1]["content"] for task in tasks]
        if kind == "dry run":
            from temper.orchestrator.pipeline.config import read_run_settings  # takes long
            from temper.orchestrator.pipeline.preview import lines, preview_of

            found = preview_of(read_run_settings(Path("configs/demo.yaml"), said))
            return lines(found), [path.name for path in Path(os.environ["HF_HOME"]).rglob("snapshots/*/*")]
        from temper.orchestrator.pipeline.config import load_config  # takes long
        from temper.orchestrator.pipeline.data_files import content

        return content(load_config(Path("configs/demo.yaml"), said))
    except (FileNotFoundError, ValueError) as error:
        return str(error)

print(json.dumps([answer(kind, said) for kind, said in json.loads(sys.argv[1])]))
"""


def answers(asked: list[tuple[str, object]], home: Path, endpoint: str) -> list[Any]:
    """Ask in a new process, since the library reads its environment once."""
    environment = os.environ | {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-c", ASK, json.dumps(asked)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    found: list[Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


COLUMNS = {"question": "problem", "answer": "solution"}
GSM_TEST = {"path": "openai/gsm8k", "config": "main", "split": "test", "columns": COLUMNS}
TINY = {"path": "Qwen/Tiny"}


def test_names_on_the_hub_are_downloaded_once_and_then_need_no_network(tmp_path: Path) -> None:
    commit = PRESETS["gsm8k"].data.revision  # so that the standard set finds its own
    assert commit is not None
    settings = ["model.path=Qwen/Tiny", "envs.math.data={path: openai/gsm8k, config: main, split: train}"]
    with served(REPOS, commit=commit) as hub:
        dry, rows, preset, folder, wrong, nobody = answers(
            [
                ("dry run", [*settings, f"runs_dir={tmp_path}"]),
                ("rows", GSM_TEST),
                ("preset", {"preset": "gsm8k", "eval_data": {"columns": COLUMNS}}),
                ("model", TINY),
                ("model", TINY | {"revision": "v9"}),
                ("model", {"path": "Qwen/Nothing"}),
            ],
            tmp_path,
            hub.endpoint,
        )
    assert [line.partition(" (")[0] for line in dry[0][1:3]] == [
        "would be downloaded: model Qwen/Tiny",
        "would be downloaded: data set openai/gsm8k",
    ]
    assert [line.partition(":")[0] for line in dry[0][3:5]] == ["not known here"] * 2
    assert dry[1] == []
    assert rows == [{"question": "7+1?", "answer": "#### 8"}]
    assert preset == ["7+1?\nPlease reason step by step, and put your final answer within \\boxed{}."]
    assert "Qwen/Tiny" in wrong
    assert "'v9'" in wrong
    assert "Qwen/Nothing" in nobody
    assert Path(folder).name == hub.commit
    held = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}
    assert {path.name for path in Path(folder).iterdir()} == held | {"model.safetensors"}  # no code, nothing pickled
    assert set(hub.sent) == held | {"model.safetensors", "README.md", "main/train.jsonl", "main/test.csv"}

    laid = tmp_path / "hub" / "models--Qwen--Laid"  # a cache that was brought here
    (laid / "refs").mkdir(parents=True)
    (laid / "refs" / "main").write_text(hub.commit)
    (laid / "snapshots" / hub.commit).mkdir(parents=True)
    (laid / "snapshots" / hub.commit / "config.json").write_text("{}")
    train, again, pinned, brought, other, absent, found = answers(
        [
            ("rows", GSM_TEST | {"split": "train"}),
            ("model", TINY),
            ("model", TINY | {"revision": hub.commit}),
            ("model", {"path": "Qwen/Laid"}),
            ("rows", {"path": "openai/gsm8k", "config": "other"}),
            ("model", {"path": "Qwen/Other", "revision": "v1"}),
            ("content", settings),
        ],
        tmp_path,
        hub.endpoint,  # where nobody answers any more
    )
    assert len(train) == 3
    assert again == pinned == folder
    assert Path(brought) == laid / "snapshots" / hub.commit
    assert f"`hf download openai/gsm8k --repo-type dataset --revision {hub.commit}`" in other
    assert "`hf download Qwen/Other --revision v1`" in absent
    assert found == {"model.revision": hub.commit, "envs.math.data.revision": hub.commit}
