"""`submit`: run a configuration as a job of a Ray cluster."""

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from temper.orchestrator.cli.exit_status import sigterm_as_sigint
from temper.orchestrator.cluster.ray_jobs import STOP_S, STOP_WAIT, Job
from temper.orchestrator.cluster.this_machine import CODE, PACKAGE
from temper.orchestrator.config.text import SHIPPED, config_file, is_file, packaged_file, read_layers
from temper.orchestrator.loop.deadline import STOPPED
from temper.orchestrator.pipeline.config import load_unresolved_config
from temper.orchestrator.pipeline.data_files import named_paths
from temper.orchestrator.pipeline.tracking import relative_store
from temper.orchestrator.run.redaction import BLANK, blank_text, blanks, is_secret, redact

EXCLUDES = ["/runs/", "/tests/", ".?*", "__pycache__/"]
"""Files of the current folder that are not copied, as in a .gitignore."""
COMMAND = ("python", "-P", "-m", "temper.orchestrator", "run")
PASSED_ON = ("HF_*", "MLFLOW_*", "NCCL_*", "TORCH_NCCL_*", "GLOO_*", "VLLM_*", "OMP_*")
"""Variables that are passed on to a cluster, besides `${oc.env:NAME}` of the configuration."""
KEPT_HERE = ("VLLM_API_KEY",)
READ_BY_NAME = re.compile(r"\$\{oc\.env:(\w+)")


def submit(config: Path, overrides: list[str], address: str) -> int:
    """Submit a run, stream its log, and return its exit status: 130 after a signal.

    `address` is the cluster's job server, `http://host:8265`.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"--address {address} is not a job server such as http://127.0.0.1:8265")
    env_vars = passed_on(os.environ, _texts(config, overrides))
    secrets = [name for name, value in env_vars.items() if is_secret(name) or blank_text(value) != value]
    if secrets := [*secrets, *_written_secrets(config, overrides)]:
        print(
            f"submit: any user of the job server can read {', '.join(secrets)}, which are sent with the job; to avoid this, "
            f"set variables on the cluster's machines, unset them here, and let settings refer to them by ${{oc.env:NAME}}",
            file=sys.stderr,
        )
    command = shlex.join(remote_command(config, overrides))
    with tempfile.TemporaryDirectory() as folder:
        package = copy_package(Path(folder))
        code = {"working_dir": os.getcwd(), "py_modules": [str(package)], "excludes": EXCLUDES}
        return run_job(address, command, code | {"env_vars": env_vars})


def copy_package(folder: Path) -> Path:
    """Copy Temper's code and configurations into a folder, without tests and hidden files. Return the copy."""
    copy = folder / "temper"
    for name in (*CODE, "configs"):
        shutil.copytree(PACKAGE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copytree(
        PACKAGE / "requirements", copy / "requirements", ignore=shutil.ignore_patterns("*.py", "__pycache__", ".*")
    )
    for file in PACKAGE.glob("*.py"):
        shutil.copy(file, copy)
    return copy


def run_job(address: str, command: str, runtime_env: dict[str, Any]) -> int:
    """Run a shell command as a job and follow it. A signal stops the job after a save, a second one exits at once."""
    env_vars = {STOP_WAIT: str(STOP_S)} | runtime_env.get("env_vars", {})
    job = Job(address, command, runtime_env=runtime_env | {"env_vars": env_vars}, write=_write)
    with sigterm_as_sigint():
        try:
            return job.follow()
        except KeyboardInterrupt:
            _write(f"stopping job {job.id}: it has {STOP_S} s to save. A second signal exits at once\n")
            job.stop()
            job.follow(limit_s=STOP_S + 60.0)
            return STOPPED


def remote_command(config: Path, overrides: list[str]) -> list[str]:
    """Return the command of a run in a copy of this folder. Raise `ValueError` for a file that the copy does not have."""
    made = load_unresolved_config(config, overrides)
    if not Path(made.runs_dir).is_absolute():
        raise ValueError(
            f"runs_dir={made.runs_dir} must be absolute, on storage that all machines of the cluster share"
        )
    if (store := relative_store(made)) is not None:
        raise ValueError(
            f"tracking.uri, or the variable instead of it, is the relative path {store}, which is removed with the job's "
            f"copy: use an absolute path on shared storage, or a server"
        )
    named = [str(_travelled("", Path(one))) if is_file(one) else one for one in (str(config), *overrides)]
    paths = {key: path for key, path in named_paths(made).items() if not path.is_absolute()}
    inside = [f"{key}={_travelled(f'{key}=', path)}" for key, path in paths.items()]
    return [*COMMAND, *named, *inside]


def _travelled(key: str, path: Path) -> Path:
    """Return the path of a file in the job: in its copy of this folder or in the package. Raise `ValueError` without one."""
    if packaged_file(path) is not None:
        return path
    whole = path.expanduser().resolve()
    if whole.is_relative_to(SHIPPED):
        return whole.relative_to(PACKAGE)
    here = Path.cwd().resolve()
    inside = whole.relative_to(here) if whole.is_relative_to(here) else Path()
    if not inside.parts or inside.parts[0] in ("runs", "tests") or any(part.startswith(".") for part in inside.parts):
        raise ValueError(
            f"{key}{path} is not copied to the job: put it into {here}, outside runs/, tests/ and hidden folders, or give "
            f"settings an absolute path on storage that all machines of the cluster share"
        )
    return inside


def passed_on(environment: Mapping[str, str], texts: list[str]) -> dict[str, str]:
    """Return the variables for the job: `PASSED_ON`, and the variables that the settings read by name."""
    read = {name for text in texts for name in READ_BY_NAME.findall(text)}
    usual = {name for name in environment if any(fnmatchcase(name, pattern) for pattern in PASSED_ON)}
    return {name: value for name, value in environment.items() if name in read | usual.difference(KEPT_HERE)}


def _texts(config: Path, overrides: list[str]) -> list[str]:
    files = [config, *map(Path, filter(is_file, overrides))]
    return [*(config_file(file).read_text(encoding="utf-8") for file in files), *overrides]


def _written_secrets(config: Path, overrides: list[str]) -> list[str]:
    """Return the settings whose values are secrets, not references to variables."""

    def hide(value: Any) -> str:
        return "" if str(value).startswith("${oc.env:") else BLANK

    return blanks(redact(read_layers(config, overrides), hidden=hide))


def _write(text: str) -> None:
    print(text, end="", flush=True)
