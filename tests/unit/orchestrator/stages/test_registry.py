"""The registry of stages: its work, its settings and an entry of the registry add a stage, everything else derives."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
ALL = "RL, DISTILL, EVAL, REPORT)\n"
CONFIG = '''"""Settings of `echo`."""

from dataclasses import dataclass, field

from temper.envs.core.setting import immutable, scheduled
from temper.learner.config import OptimConfig


@dataclass(frozen=True, kw_only=True)
class EchoConfig:
    steps: int = scheduled(7)
    said: str = immutable("said.txt")
    shares: dict[str, float] = scheduled({})
    optim: OptimConfig = field(default_factory=OptimConfig)
'''
WORK = '''"""`echo`: trains on what was said before."""

from pathlib import Path

from temper.orchestrator.config.echo import EchoConfig
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import StageInstance, StartCheck


async def run_echo(run: Run, config: EchoConfig, instance: StageInstance) -> Path:
    raise NotImplementedError


def check_echo(config: EchoConfig, start: StartCheck) -> None:
    if not Path(config.said).exists():
        raise FileNotFoundError(f"{start.name}.said={config.said} is missing")
'''
ENTRY = """from temper.envs.data.config import DataConfig
from temper.orchestrator.config.echo import EchoConfig
from temper.orchestrator.config.fitting import fit_training

ECHO = Stage(
    name="echo",
    help="train on what was said before",
    role=Role.TRAIN,
    settings=EchoConfig,
    run=defer_import("temper.orchestrator.stages.echo", "run_echo"),
    first_ticket=5 * TICKETS,
    plays=lambda config: True,
    data=lambda config: DataConfig(path=config.said),
    fits=fit_training,
    check=defer_import("temper.orchestrator.stages.echo", "check_echo"),
)
"""
LOOK = """
import json
import os
from pathlib import Path

from temper.envs.core.setting import kind_of
from temper.orchestrator.pipeline.config import KINDS, flat_config, load_config
from temper.orchestrator.pipeline.data_files import content
from temper.orchestrator.pipeline.prepare import wanted_processes
from temper.orchestrator.pipeline.start_checks import check_before
from temper.orchestrator.stages.registry import all_stages


def refused(*overrides):
    try:
        config = load_config(Path("configs/demo.yaml"), ["stages=[init,echo]", *overrides])
        check_before(config, config.instances, Path("run"))
    except (ValueError, FileNotFoundError) as error:
        return str(error)


twice = ["stages=[init,echo,{echo: {name: loud, steps: 3}}]", "echo.said=configs/demo.yaml"]
config = load_config(Path("configs/demo.yaml"), twice)
print(json.dumps({
    "stages": list(all_stages()),
    "steps": {one.name: config.steps(one) for one in config.instances if one.stage.trains},
    "flat": flat_config(config)["loud.steps"],
    "kinds": [kind_of(KINDS, f"echo.{name}").value for name in ("steps", "said", "optim.kind")],
    "files": sorted(key for key in content(config) if key.startswith(("echo.", "loud."))),
    "refused": [refused(), refused("echo.shares.maths=1"), refused("echo.stepz=1")],
    "placed": wanted_processes(config, config.instances[1:]).gpus,
}))
"""


def test_a_stage_is_its_work_its_settings_and_an_entry(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "orchestrator", tmp_path / "orchestrator", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".types").mkdir()
    (tmp_path / ".types" / "temper").symlink_to("..")
    for name in ("__init__.py", "rewards", "envs", "rollout", "learner", "configs", "Makefile", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    folder = tmp_path / "orchestrator"
    (folder / "config" / "echo.py").write_text(CONFIG)
    (folder / "stages" / "echo.py").write_text(WORK)
    registry = folder / "stages" / "registry.py"
    text = registry.read_text()
    assert text.count(ALL) == 1
    text = text.replace(ALL, ALL.replace(")", ", ECHO)")).replace("STAGES: ", f"{ENTRY}STAGES: ")
    registry.write_text(text)
    said = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ".types"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout.splitlines()[-1])
    assert "echo" in found["stages"]
    assert (found["steps"], found["flat"]) == ({"echo": 7, "loud": 3}, "3")
    assert found["kinds"] == ["schedule", "immutable", "immutable"]
    assert found["files"] == ["echo.data.path", "loud.data.path"]
    missing, no_env, unknown = found["refused"]
    assert missing == "echo.said=said.txt is missing"
    assert no_env.startswith("echo.shares.maths ")
    assert "echo.steps" in unknown
    assert found["placed"] == 2  # it runs episodes and trains
    made = subprocess.run(["make", "-n", "echo"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=20)
    assert "-m temper.orchestrator run configs/demo.yaml --stage echo" in made.stdout
