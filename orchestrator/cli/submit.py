"""`submit`: a run as a job of a Ray cluster, or of a local one that lives as long as the job."""

import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, MappingProxyType
from urllib.parse import urlsplit

from temper.orchestrator.cluster.module_search import FOLDER
from temper.orchestrator.cluster.ray_jobs import JOB_STOP_S, Job, JobServer, local_head
from temper.orchestrator.cluster.this_machine import LOOPBACK, ROOT
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.text import is_file
from temper.orchestrator.loop.deadline import STOPPED
from temper.orchestrator.pipeline.config import Config, unsettled_config
from temper.orchestrator.pipeline.data_files import named_paths
from temper.orchestrator.pipeline.tracking import stores_by_path
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.session.engines import DELIVERIES
from temper.orchestrator.tools.preflight.plan.model import planned_model

EXCLUDES = ["/.venv/", "/.types/", "/runs/", "/.git/", "/tests/", "/.*_cache/", "__pycache__/"]
PASSED_ON = ("HF_*", "MLFLOW_*", "NCCL_*", "TORCH_NCCL_*", "GLOO_*", "VLLM_*")
"""Variables of the environment that travel with a job, beside those that its configuration reads by `${oc.env:NAME}`."""
KEPT_HERE = ("VLLM_API_KEY",)
KEY_STAYS = (
    "submit: WANDB_API_KEY stays here, since whoever may ask the job server would see it; where the cluster's machines have "
    "none of their own, W&B's files stay in the run's folder for `wandb sync`"
)
SECRET = ("_TOKEN", "_KEY", "_PASSWORD", "_SECRET")
SECRETS_TRAVEL = (
    "travels with the job, and any user of the job server can read it; set it on the cluster's machines and unset it here "
    "to avoid that"
)
READ_BY_NAME = re.compile(r"\$\{oc\.env:(\w+)")
LOCAL_NAMES = (LOOPBACK, "localhost", "::1")


def submit(config: Path, overrides: list[str], address: str | None) -> int:
    """Submit a run, stream its log, return its exit status.

    SIGINT and SIGTERM stop the job, and the same call continues it. `address` is a cluster's job server,
    `http://host:8265`; None starts a local cluster for this job, of which what its workers printed stays in the run's folder.
    A cluster with token authentication is reached by the token in RAY_AUTH_TOKEN.
    """
    local = address is None or urlsplit(address).hostname in LOCAL_NAMES
    command = run_command(config, overrides, local=local)
    env_vars = passed_on(os.environ, _texts(config, overrides))
    made = unsettled_config(config, overrides)
    stop_s = stop_wait_s(made, *_sizes(made))
    if address is not None:
        if "wandb" in made.tracking.also and "WANDB_API_KEY" in os.environ:
            print(KEY_STAYS, file=sys.stderr)
        if secrets := [name for name in env_vars if name.endswith(SECRET)]:
            print(f"submit: {', '.join(secrets)}: {SECRETS_TRAVEL}", file=sys.stderr)
        return run_job(named_server(address), command, write=_to_stdout, env_vars=env_vars, stop_s=stop_s)
    logs = RunDir(Path(made.runs_dir) / made.name).log.with_name("ray")
    with local_head(logs=logs) as server:
        status = run_job(server, command, write=_to_stdout, env_vars=env_vars, stop_s=stop_s)
    if logs.is_dir():
        print(f"what engines and ranks printed: {logs}")
    return status


def stop_wait_s(config: Config, checkpoint_bytes: int, push_bytes: int) -> int:
    """Return the seconds in which a run ends after a stop, by its own deadlines, for a model of these sizes.

    A stop that comes in the learner's step waits for the step and its push. The checkpoint before may still be written then,
    and another one follows.
    """
    step_s = 0.0
    for settings in (config.settings(one) for one in config.instances if one.stage.trains):
        if isinstance(settings, LoopConfig):
            push_s = DELIVERIES * config.rollout.engine.push_deadline_s(push_bytes)
            step_s = max(step_s, 2 * settings.timeout_s + push_s + config.deadlines.shift_s)
        else:
            step_s = max(step_s, config.deadlines.step_s)
    return math.ceil(step_s + 2 * config.deadlines.files(checkpoint_bytes).seconds + JOB_STOP_S)


def _sizes(config: Config) -> tuple[int, int]:
    """Return the bytes of the model's checkpoint and of a push, or zeros with a note if the model is not known here."""
    try:
        model = planned_model(config.model, config.learner)
    except (OSError, ValueError) as error:
        print(
            f"submit: the model is not known on this machine ({error}), so the time that a stopped job may take leaves out "
            f"the bytes of its checkpoint; if saving needs longer, raise deadlines.files_s",
            file=sys.stderr,
        )
        return 0, 0
    return model.checkpoint_bytes, max(model.push_bytes.values())


def _texts(config: Path, overrides: list[str]) -> list[str]:
    """Return all that gives settings, as text."""
    files = [config, *map(Path, filter(is_file, overrides))]
    return [*(file.read_text(encoding="utf-8") for file in files), *overrides]


def passed_on(environment: Mapping[str, str], settings: list[str]) -> dict[str, str]:
    """Return the variables that travel with a job: those of `PASSED_ON`, and those that the settings' text reads by name."""
    named = {name for text in settings for name in READ_BY_NAME.findall(text)}
    return {
        name: value
        for name, value in environment.items()
        if name in named or (name not in KEPT_HERE and any(fnmatchcase(name, pattern) for pattern in PASSED_ON))
    }


def run_job(
    server: JobServer,
    command: list[str],
    *,
    write: Callable[[str], None],
    working_dir: Path = ROOT,
    env_vars: Mapping[str, str] = MappingProxyType({}),
    stop_s: int = JOB_STOP_S,
) -> int:
    """Run a command as a job and follow it to its end. Returns its exit status, 130 if a signal stopped it.

    A job that is stopped may take `stop_s` seconds until it is killed.
    """
    job = Job.submit(
        server,
        shlex.join(command),
        working_dir=working_dir,
        excludes=EXCLUDES,
        env_vars=dict(env_vars),
        write=write,
        stop_s=stop_s,
    )
    with _sigterm_as_sigint():
        try:
            job.follow()
            return job.wait()
        except KeyboardInterrupt:
            write(f"stopping job {job.id}: it may save for {stop_s} s before it is killed; once more leaves at once\n")
            job.stop()
            job.wait()
            return STOPPED


def run_command(config: Path, overrides: list[str], *, local: bool) -> list[str]:
    """Return the command of a run inside its job, which works on a copy of this repository: results must not land in it.

    On this machine `runs_dir` and what settings name become absolute, and modules of the user's own are found where they
    are. Raise `ValueError` where another machine could not know one of them.
    """
    made = unsettled_config(config, overrides)
    runs_dir = Path(made.runs_dir)
    if not local and not runs_dir.is_absolute():
        raise ValueError(f"runs_dir={runs_dir} must be absolute, on storage that all machines of the cluster share")
    files = {one: _named(Path(one), local=local) for one in (str(config), *filter(is_file, overrides))}
    named = [files.get(one, one) for one in (str(config), *overrides)]
    if not local:
        _require_modules_to_travel(made)
        copied = {key: path for key, path in named_paths(made).items() if not path.is_absolute()}
        inside = [f"{key}={_travelled(key, path)}" for key, path in copied.items()]
        if stores := stores_by_path(made):
            raise ValueError(
                f"{' and '.join(stores)}, or a variable in its place, names a relative path, which would be one of the job's "
                f"copy and end with it: give an absolute path, on storage that all machines of the cluster share, or a server"
            )
        return ["sh", "requirements/temper", "run", *named, *inside, f"runs_dir={runs_dir}"]
    absolute = [f"{key}={path.expanduser().resolve()}" for key, path in named_paths(made).items()]
    absolute += [f"{key}={store}" for key, store in stores_by_path(made).items()]
    command = ["sh", "requirements/temper", "run", *named, *absolute]
    # Of the modules that are called like ours, those of the copy, in which the job runs, come first.
    searched = [
        f"{FOLDER}={os.getcwd()}",
        f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
        f"TEMPER_PYTHON={sys.executable}",
    ]
    return ["env", *searched, *command, f"runs_dir={runs_dir.resolve()}"]


def _named(config: Path, *, local: bool) -> str:
    """Return a configuration's name in the job. Raise `ValueError` where it would not travel to another machine."""
    path = config.resolve()
    inside = path.is_relative_to(ROOT)
    if not local and not inside:
        raise ValueError(f"{config} lies outside {ROOT} and would not travel with the job; copy it to configs/")
    return str(path.relative_to(ROOT) if inside else path)


def _travelled(key: str, path: Path) -> Path:
    """Return what a relative path is in the job's copy of the repository: here it is one of the current folder.

    Raise `ValueError` where it would not be in the copy.
    """
    whole = path.expanduser().resolve()
    inside = whole.relative_to(ROOT) if whole.is_relative_to(ROOT) else Path()
    if not inside.parts or f"/{inside.parts[0]}/" in EXCLUDES:
        raise ValueError(
            f"{key}={path} would not travel with the job: give an absolute path, on storage that all machines of the "
            f"cluster share, or put it into {ROOT}, without runs/ and tests/"
        )
    return inside


def _require_modules_to_travel(config: Config) -> None:
    """Raise `ValueError` for a module of the run that another machine would not have."""
    for name, bound in config.environments.items():
        package = bound.definition.entry_point.partition(":")[0].partition(".")[0]
        spec = find_spec(package)
        file = Path(spec.origin).resolve() if spec is not None and spec.origin else ROOT
        if not file.is_relative_to(ROOT) and not file.is_relative_to(Path(sys.prefix).resolve()):
            raise ValueError(
                f"envs.{name}: the module {package!r} lies in {file.parent} and would not travel with the job; copy it "
                f"into {ROOT}, or install it in the cluster's environment"
            )


def named_server(address: str) -> JobServer:
    """Return the job server of an existing cluster."""
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"address {address!r} must be that of a job server, for example http://127.0.0.1:8265")
    token = os.environ.get("RAY_AUTH_TOKEN")
    return JobServer(address=address, headers={"Authorization": f"Bearer {token}"} if token else {})


def _to_stdout(text: str) -> None:
    print(text, end="", flush=True)


@contextmanager
def _sigterm_as_sigint() -> Iterator[None]:
    """Let SIGTERM do what SIGINT does, which asyncio knows how to treat.

    Neither is ignored inside, though a shell starts commands in the background so that they ignore SIGINT.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    before_int = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, before_int)
