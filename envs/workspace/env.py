"""The workspace environment: the model repairs a small Python project with tools, and hidden tests judge its files."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from temper.envs.coding.env import TESTS
from temper.envs.core.bounds import require_known
from temper.envs.core.clock import stop_clock
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.row_format import Row, RowFormat, field, has_fields
from temper.envs.core.step_result import StepResult, tool_span
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import BadCall, Call, ParsedTurn, make_call_turn, turn_text
from temper.envs.task_env import MAX_CALLS, TaskEnv, answer_each
from temper.envs.workspace import bugs
from temper.envs.workspace.container import ContainerWorkspace
from temper.envs.workspace.files import Workspace
from temper.envs.workspace.folder import files_in, write_files
from temper.envs.workspace.hidden_tests import checks_of, module_names, verify
from temper.envs.workspace.tools import SHELL_TOOLS, TOOLS, use_tool
from temper.rewards.score import FORMAT, TOOL_ERRORS, Score, error_rate

MAX_TURNS = 12
DONE = "Done."
IMAGE = "image"


class WorkspaceEnv(TaskEnv):
    """The files are in memory, or in the folder of an agent. A turn with calls is answered by one tool message per call.

    A turn without calls ends the episode. At the turn limit (12) it ends after the calls of the last turn.

    The hidden tests then run on a copy of the files. Parts: `correct` (all pass), `tests` (the share that passes),
    `tool_errors` (the share of refused calls) and `format` (0 if a call was unreadable).
    """

    workspace = Workspace({})

    def begin(self, task: Task) -> None:
        files, image = task.spec["files"], task.env.options.get(IMAGE, "")
        self.workspace.close()
        self.workspace = ContainerWorkspace(files, image) if image else Workspace(files)
        self.calls = self.accepted = self.unreadable = 0

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        if not parsed.calls:
            return self.end(self.score_so_far(task))
        results = answer_each(parsed.calls, self._answer)
        self.calls += len(parsed.calls)
        self.unreadable += sum(isinstance(call, BadCall) for call in parsed.calls)
        if self.is_last(task):
            return self.truncate(f"after {self.turns} turns")
        messages: list[Message] = [{"role": "tool", "content": result} for result in results]
        return self.continue_with(messages)

    def _answer(self, call: Call | BadCall) -> str:
        with tool_span(call):
            try:
                result = use_tool(self.workspace, call)
            except ValueError as error:
                return f"error: {error}"
        self.accepted += 1
        return result

    def write_files(self, folder: Path) -> None:
        write_files(folder, self.workspace.files)

    def close(self) -> None:
        with stop_clock():
            self.workspace.close()
        super().close()

    def read_files(self, folder: Path) -> None:
        """See `TaskEnv.read_files`. Beyond the quotas the workspace is empty, and passes no test."""
        try:
            self.workspace = Workspace(files_in(folder))
        except ValueError:
            self.workspace = Workspace({})

    def score_so_far(self, task: Task) -> Score:
        settings, image = task.env.settings, task.env.options.get(IMAGE, "")
        score = verify(self.workspace.files, task.spec, credit=settings.credit, image=image)
        parts = {FORMAT: float(self.unreadable == 0), TOOL_ERRORS: error_rate(self.calls - self.accepted, self.calls)}
        return score.with_parts(parts)


def load(row: Row) -> Task:
    """Make a task of a row: `prompt`, `files`, hidden `tests` and an optional `solution`, each a text by path."""
    files, tests = _files(row, "files"), _files(row, "tests")
    spec = {"files": files, "tests": tests}
    if row.get("solution") is not None:
        spec["solution"] = _files(row, "solution")
    for path, text in tests.items():
        checks_of(text, path)
    request = f"{field(row, 'prompt', str).strip()}\n\nFiles: {', '.join(sorted(files))}"
    return Task(messages=({"role": "user", "content": request},), spec=spec, tools=TOOLS)


def _files(row: Row, name: str) -> dict[str, str]:
    """Return the files of a field. Raise `ValueError` for a bad path, too much text or a name of a standard module."""
    given = field(row, name, dict)
    if not given or not all(isinstance(text, str) for item in given.items() for text in item):
        raise ValueError(f"field {name!r} is {given!r:.80}; it must map paths to texts")
    try:
        files = Workspace(given).files
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from None
    hidden = sorted(sys.stdlib_module_names & set(module_names(files)))
    if hidden:
        raise ValueError(f"field {name!r} has {hidden[0]!r}, a name of a standard module; rename it")
    return files


def with_shell(make: Callable[..., Task], *given: Any) -> Task:
    return replace(make(*given), tools=SHELL_TOOLS)


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    if not options:
        return ENVIRONMENT
    require_known(options, (IMAGE,), "options")
    image = options[IMAGE]
    if not isinstance(image, str) or not image or image.startswith("-"):
        raise ValueError(f"options.image is {image!r}; set the name of a local image of podman or docker")
    formats = tuple(replace(known, load=partial(with_shell, known.load)) for known in ENVIRONMENT.formats)
    generate = partial(with_shell, bugs.generate)
    return replace(ENVIRONMENT, options={IMAGE: image}, generate=generate, formats=formats, replays=False)


def reference(task: Task) -> list[str]:
    if "solution" not in task.spec:
        raise ValueError(f"task {task.label} has no solution")
    return _turns(task.spec["solution"])


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    yield "nothing", [DONE]
    paths = [path for path in task.spec.get("solution", task.spec["files"]) if path.endswith(".py")]
    yield "exits", _turns(dict.fromkeys(paths, "raise SystemExit(0)\n"))


def _turns(files: dict[str, str]) -> list[str]:
    """Return the turns that write these files and end."""
    calls = [("write", {"path": path, "text": text}) for path, text in files.items()]
    parts = [calls[start : start + MAX_CALLS] for start in range(0, len(calls), MAX_CALLS)]
    return [*(turn_text(make_call_turn(part), thinks=False) for part in parts), DONE]


ENVIRONMENT = EnvDefinition(
    id="workspace",
    entry_point="temper.envs.workspace.env:WorkspaceEnv",
    generate=bugs.generate,
    levels=2,
    formats=(RowFormat(name="workspace", matches=has_fields("prompt", "files", "tests"), load=load),),
    demonstrate=bugs.demonstrate,
    reference=reference,
    negatives=negatives,
    configure=configure,
    parts=(*PARTS, TESTS, TOOL_ERRORS),
    max_turns=MAX_TURNS,
    runs_programs=True,
)
