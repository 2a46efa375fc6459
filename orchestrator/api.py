"""Temper from Python: `train`, `evaluate` and `serve` run the commands `run`, `eval` and `serve`.

Each command runs in a separate process, whose progress is printed here. So the caller may be a script, a notebook, a thread
or code in a running event loop, and holds no engine. If the caller ends, so does the command.
"""

import atexit
import html
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from temper.envs.core.function_source import name_of_function
from temper.orchestrator.cluster.this_machine import free_port, worker_variables
from temper.orchestrator.config.text import merge, read_layers, read_text, yaml_text
from temper.orchestrator.loop.deadline import STOPPED
from temper.orchestrator.pipeline.config import check_keys
from temper.orchestrator.run.folder import RunDir, complete_lines

if TYPE_CHECKING:
    from pandas import DataFrame

Function = Callable[..., Any] | str
"""A function, or its name as `module.function` or `file.py:function`."""
Data = str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A name on the hub, the path of a file, the settings `envs.NAME.data`, or rows."""
INPUTS = "inputs"
"""Folder of a run that holds settings, rows and functions that a caller gave."""
STAGES = ["init", "eval", "rl", "eval", "report"]
START_S = 600.0
"""Most seconds until a server answers."""
STOP_S = 30.0
LAUNCH = """
import ctypes, signal, sys
if sys.argv.pop(1) == "tied":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the caller may ignore it, as under nohup
    ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG: stop if the caller dies
from temper.orchestrator.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The page of a run. A notebook shows it."""

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 800px; border: 0"></iframe>'


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A run by its folder. A notebook shows its report."""

    folder: str | Path

    @property
    def _files(self) -> RunDir:
        return RunDir(Path(self.folder))

    @property
    def metrics(self) -> "DataFrame":
        """The rows of `metrics.jsonl`, one a step: `stage`, `step`, `time` in seconds since 1970, and a column a metric."""
        import pandas

        path = self._files.metrics
        rows = map(json.loads, complete_lines(path.read_text(encoding="utf-8")))
        return pandas.DataFrame([row for row in rows if "event" not in row])

    @property
    def report(self) -> Report:
        """Raise `FileNotFoundError` if no stage `report` has run."""
        page = self._files.root / "report.html"
        if not page.is_file():
            raise FileNotFoundError(
                f"{page} is missing: add the stage report, or run temper report {self.folder}/config.yaml"
            )
        return Report(page)

    @property
    def model(self) -> str:
        """The folder of the newest model, in the format of Hugging Face. Raise `FileNotFoundError` if there is none."""
        return str(self._files.newest_model())

    def view(self, *, step: str | int | None = None, evaluation: str | None = None, open_page: bool = True) -> Path:
        """Write the viewer of a step's or an evaluation's answers as one page, open it, and return its path.

        Without a choice it shows the newest step. Raise `ValueError` if the run has no such answers.
        """
        page = self._files.root / "view.html"
        chosen = {"--step": step, "--evaluation": evaluation}
        options = [word for option, value in chosen.items() if value is not None for word in (option, str(value))]
        _execute(["view", str(self.folder), "--out", str(page), *options], show=False)
        if open_page:
            webbrowser.open(page.resolve().as_uri())
        return page

    def _repr_html_(self) -> str:
        return self.report._repr_html_() if (self._files.root / "report.html").is_file() else html.escape(repr(self))


@dataclass(slots=True, kw_only=True)
class ModelServer:
    """A server that speaks OpenAI's protocol at `url`, until `close` or the end of a `with` block."""

    url: str
    process: "subprocess.Popen[bytes]" = field(repr=False)
    log: IO[bytes] = field(repr=False)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        atexit.unregister(self.close)

    def __enter__(self) -> "ModelServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def train(
    model: str | Path | None = None,
    data: Data | None = None,
    reward: Function | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    tools: Sequence[Function] = (),
    name: str | None = None,
    **settings: Any,
) -> TrainedRun:
    """Train a model and return its run. Ctrl-C stops the run at the next safe point. Call again with its `name` to resume.

    `reward` takes the answer and the row, and returns a number or numbers by name. It may be async. `tools` are typed
    functions with docstrings. `config` has further settings, `settings` override it: `rl={"steps": 20}`, or
    `**{"rl.steps": 20}`. Without `reward`, the rows have answers to compare with. Without `model`, a fresh small one is made.
    Without `name`, a new run begins.

    Raise `ValueError` for wrong input, `RuntimeError` for a fault of the run, `KeyboardInterrupt` after Ctrl-C.
    """
    given = _settings(config, settings)
    given = merge({"stages": STAGES} if config is None else {}, given)
    if model is not None:
        given = merge(given, {"model": {"path": str(model)}})
    given["name"] = name or given.get("name") or _fresh_name("train")
    folder = Path(given.setdefault("runs_dir", "runs")) / str(given["name"])
    given = _with_task(given, folder / INPUTS, setting="data", data=data, reward=reward, tools=tools)
    _execute(["run", str(_write_settings(given, folder / INPUTS))])
    return TrainedRun(folder)


def evaluate(
    model: str | Path | TrainedRun,
    data: Data | None = None,
    reward: Function | None = None,
    *,
    preset: str | None = None,
    tools: Sequence[Function] = (),
    name: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate a model or a run and return the scores: the content of `eval/LABEL.json`, by environment under `envs`.

    A run without `data` or `preset` is evaluated on its held-out tasks. With `data` alone, the environment of the run judges.
    Arguments and errors are as for `train`.
    """
    given = _settings(None, settings)
    runs_dir = str(given.pop("runs_dir", "runs"))
    folder = Path(runs_dir) / (name or _fresh_name("eval"))
    source = Path(model.folder if isinstance(model, TrainedRun) else model)
    words = ["eval", str(source)]
    if data is not None and reward is None and "envs" not in given:
        given |= _sole_environment(source)
    if data is not None or reward is not None or tools:
        given = _with_task(given, folder / INPUTS, setting="eval_data", data=data, reward=reward, tools=tools)
        words += ["--env", next(iter(given["envs"]))]
    words += [] if preset is None else ["--preset", preset]
    words += [str(_write_settings(given, folder / INPUTS))] if given else []
    _execute([*words, "--name", folder.name, "--runs-dir", runs_dir])
    newest = max(RunDir(folder).evals.glob("*.json"), key=lambda path: path.stat().st_mtime)
    scores: dict[str, Any] = json.loads(newest.read_text(encoding="utf-8"))
    return scores


def serve(model: str | Path | TrainedRun, *, port: int | None = None, **options: str | int | float) -> ModelServer:
    """Serve a model or the newest one of a run, and return when the server answers.

    `options` are options of `temper serve`, such as `max_model_len=4096`. Raise `ValueError` for wrong input, `RuntimeError` if
    the server ends or does not answer within ten minutes.
    """
    port = free_port() if port is None else port
    words = ["serve", str(model.folder if isinstance(model, TrainedRun) else model), "--port", str(port)]
    words += [word for key, value in options.items() for word in _option(key.replace("_", "-"), value)]
    log = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the server
    process = subprocess.Popen(_command(words, tied=False), env=_environment(), stdout=log, stderr=subprocess.STDOUT)
    host = str(options.get("host", "127.0.0.1"))
    server = ModelServer(url=f"http://{host}:{port}/v1", process=process, log=log)
    atexit.register(server.close)
    try:
        _await_answer(server, f"http://{host}:{port}/health")
    except BaseException:
        server.close()
        raise
    return server


def _option(name: str, value: str | int | float) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def _await_answer(server: ModelServer, address: str) -> None:
    direct, deadline = urllib.request.build_opener(urllib.request.ProxyHandler({})), time.monotonic() + START_S
    while time.monotonic() < deadline:
        status = server.process.poll()
        if status is not None:
            server.log.seek(0)
            _raise_error(status, server.log.read().decode(errors="replace"))
            raise RuntimeError(f"the server ended with status {status}")
        with suppress(urllib.error.URLError, OSError), direct.open(address, timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{address} did not answer in {START_S:.0f} s")


def _settings(config: str | Path | Mapping[str, Any] | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if isinstance(config, Mapping):
        given = dict(config)
    elif config is not None:
        given = dict(read_text(Path(config), []))
    for key, value in settings.items():
        part = value
        for word in reversed(key.split(".")):
            part = {word: part}
        given = merge(given, part)
    return given


def _sole_environment(run: Path) -> dict[str, Any]:
    """Return the environment of a run as a setting; none for a model, and for a run of several."""
    file = run / "config.yaml"
    names = list(read_layers(file, []).get("envs") or {}) if file.is_file() else []
    return {"envs": {names[0]: {}}} if len(names) == 1 else {}


def _with_task(
    given: dict[str, Any],
    inputs: Path,
    *,
    setting: str,
    data: Data | None,
    reward: Function | None,
    tools: Sequence[Function],
) -> dict[str, Any]:
    """Return settings in which the one environment has data, reward and tools. Raise `ValueError` if there are several."""
    envs = given.get("envs") or {}
    parts: dict[str, Any] = {}
    if data is not None:
        parts[setting] = _named_data(data, inputs)
    if reward is not None:
        parts["reward"] = name_of_function(reward, inputs)
    if tools:
        parts["tools"] = [name_of_function(tool, inputs) for tool in tools]
    if not parts:
        return given
    if len(envs) > 1:
        raise ValueError(
            f"{', '.join(parts)} with the environments {', '.join(envs)}: set them in envs, in one of these"
        )
    if not envs and data is None:
        raise ValueError(
            f"{', '.join(parts)} without data: give data, or generated tasks such as envs={{'math': {{}}}}"
        )
    name = next(iter(envs), "math" if reward is None else "rows")
    return merge(given, {"envs": {name: parts}})


def _named_data(data: Data, inputs: Path) -> Any:
    if isinstance(data, Mapping):
        return dict(data)
    if isinstance(data, str | Path):
        return str(data)
    if not data or not all(isinstance(row, Mapping) for row in data):
        raise ValueError("data must be a path, a name on the hub, settings or a list of rows, each a dict")
    text = "".join(json.dumps(dict(row)) + "\n" for row in data)
    return str(_write(inputs / f"rows-{sha256(text.encode()).hexdigest()[:8]}.jsonl", text))


def _write_settings(given: Mapping[str, Any], inputs: Path) -> Path:
    try:
        text = yaml_text(given)
    except ValueError:  # a value that is not plain data, often a function under another project's key
        check_keys(given, is_complete=False)
        raise
    return _write(inputs / "settings.yaml", text)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path.resolve()


def _fresh_name(kind: str) -> str:
    return f"{kind}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S-%f')[:-3]}"


def _execute(words: Sequence[str], *, show: bool = True) -> None:
    """Run a command, print its output, and raise its error. An interrupt is passed on, and raised at its end."""
    process = subprocess.Popen(
        _command(words, tied=True),
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which passes it on
    )
    errors: list[str] = []
    interrupted = False
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        reading = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
        reading.start()
        while process.returncode is None:
            try:
                for line in process.stdout:
                    if show:
                        print(line, end="", flush=True)
                process.wait()
            except KeyboardInterrupt:
                interrupted = True
                process.send_signal(signal.SIGINT)
        reading.join(STOP_S)
    if interrupted:
        raise KeyboardInterrupt
    _raise_error(process.returncode, "".join(errors))


def _raise_error(status: int, text: str) -> None:
    """Raise the error of a command, by its exit status and by the last error in its output."""
    if status == 0:
        return
    kind = max(("error: ", "fault: "), key=text.rfind)
    found = text.rpartition(kind)[2].strip() if kind in text else text.strip()[-2000:]
    if status == STOPPED:
        raise RuntimeError(f"the command was stopped; {found}")
    raise ValueError(found) if kind == "error: " and kind in text else RuntimeError(found or f"exit status {status}")


def _command(words: Sequence[str], *, tied: bool) -> list[str]:
    return [sys.executable, "-c", LAUNCH, "tied" if tied else "free", *words]


def _environment() -> dict[str, str]:
    """Return the environment of a command, which finds modules as this process does."""
    variables = dict(os.environ) | worker_variables()
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    own = [each for each in sys.path if each and installed.isdisjoint(Path(each).resolve().parents)]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*variables["PYTHONPATH"].split(os.pathsep), *own]))
    variables.pop("MPLBACKEND", None)  # of a notebook's kernel
    return variables
