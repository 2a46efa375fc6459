"""Imports, opens and runs the files of a workspace inside the sandbox, which has no disk. Standard library only.

Its text precedes every program on the files (`temper.envs.workspace.files`). The standard library takes precedence.
"""

import builtins
import importlib.util
import io
import linecache
import os
import sys
import traceback
import types
from importlib.machinery import ModuleSpec
from typing import Any

PROGRAM = "<program>"  # the file name of the text of this file in the sandbox


class Importer:
    """Finds the modules of the workspace. A folder without `__init__.py` is a package too."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files, self.disk = files, builtins.open
        for path, text in files.items():  # for tracebacks
            linecache.cache[path] = (len(text), None, text.splitlines(True), path)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        stem = name.replace(".", "/")
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        for file in (f"{stem}/__init__.py", f"{stem}.py"):
            if file in self.files:
                return importlib.util.spec_from_loader(name, self, origin=file, is_package=file != f"{stem}.py")  # type: ignore[arg-type]
        if any(file.startswith(f"{stem}/") for file in self.files):
            return importlib.util.spec_from_loader(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        if module.__spec__.origin is not None:
            self.execute(module.__spec__.origin, module)

    def execute(self, file: str, module: types.ModuleType) -> None:
        module.__file__ = file
        exec(compile(self.files[file], file, "exec", dont_inherit=True), module.__dict__)

    def open(self, file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        """Open a file of the workspace for reading. Another file is opened as usual, which the sandbox restricts."""
        path = os.path.normpath(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) else ""
        if path not in self.files:
            return self.disk(file, mode, *rest, **named)
        if set(mode) & set("wax+"):
            raise PermissionError(f"programs can't change files: {path}")
        return io.BytesIO(self.files[path].encode()) if "b" in mode else io.StringIO(self.files[path])


def install(files: dict[str, str]) -> Importer:
    importer = Importer(files)
    sys.meta_path.insert(0, importer)
    builtins.open = io.open = importer.open
    return importer


def run(importer: Importer, words: list[str]) -> None:
    """Run the words after `python`. The output ends with the exit code."""
    code: object = 0
    sys.argv, sys.stderr = words, sys.stdout
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        if words[0] == "-c":
            exec(compile(words[1], "<string>", "exec", dont_inherit=True), main.__dict__)
        elif (file := os.path.normpath(words[0])) in importer.files:
            importer.execute(file, main)
        else:
            code = f"2: no file {file}"
    except SystemExit as end:
        code = int(end.code) if isinstance(end.code, int) else end.code or 0
    except BaseException as error:
        code = 1
        traceback.print_exception(error.with_traceback(skip_own_frames(error.__traceback__)))
    print(f"\nexit {code}")


def skip_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == PROGRAM:
        trace = trace.tb_next
    return trace
