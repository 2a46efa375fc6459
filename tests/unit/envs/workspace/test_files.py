"""The files of a workspace: quotas, paths, and programs on them."""

import pytest

from temper.envs.core.turn_text import BadCall, Call
from temper.envs.workspace.files import MAX_BYTES, MAX_FILE_BYTES, MAX_FILES, SandboxWorkspace
from temper.envs.workspace.tools import MAX_RESULT_CHARACTERS, use_tool

FILES = {
    "m.py": "def f(x):\n    return x + 1\n",
    "pkg/a.py": "from m import f\nVALUE = f(2)\n",
    "data/d.txt": "one\ntwo\nthree\n",
    "test_m.py": (
        "import unittest\nfrom m import f\nclass T(unittest.TestCase):\n    def test(self):\n"
        "        self.assertEqual(f(1), 3)\n"
    ),
    "ends.py": "import sys\nprint(sys.argv, __name__)\nsys.exit(3)\n",
    "numbers.txt": "",
    "array.txt": "import os\nimport numpy\n",
}


def run(command: str, files: dict[str, str] = FILES) -> tuple[int, str]:
    return SandboxWorkspace(files).exec(command, timeout_s=2.0)


def tool(workspace: SandboxWorkspace, tool_name: str, **arguments: object) -> str:
    return use_tool(workspace, Call(name=tool_name, arguments=arguments))


@pytest.mark.parametrize(
    ("command", "code", "printed"),
    [
        ("python -c 'print(1)'", 0, "1\n"),
        ("python3 -c 'import pkg.a; print(pkg.a.VALUE)'", 0, "3\n"),
        ("python ends.py a 'b c'", 3, "['ends.py', 'a', 'b c'] __main__\n"),
        ("python -c 'print(open(\"data/d.txt\").read(3))'", 0, "one\n"),
        ("python -c 'import pathlib; print(pathlib.Path(\"data/d.txt\").read_bytes()[:3])'", 0, "b'one'\n"),
        ("python -c 'import os; print(5, flush=True); os._exit(0)'", 0, "5\n"),
        ("python -c 'raise SystemExit(\"no\")'", 1, "no\n"),
    ],
)
def test_a_command_gives_its_code_and_output(command: str, code: int, printed: str) -> None:
    assert run(command) == (code, printed)


@pytest.mark.parametrize(
    ("command", "code", "shown"),
    [
        ("python -m unittest", 1, ["test_m.py", "AssertionError: 2 != 3", "Ran 1 test\n"]),
        ("python -m unittest test_m.T.test", 1, ["AssertionError"]),
        ("python -c 'import m; m.f(None)'", 1, ["return x + 1", "TypeError"]),
        ("python none.py", 1, ["none.py"]),
        ("python -c 'while True: pass'", 124, ["time"]),
        ("python -c 'import os; os._exit(7)'", 1, ["7"]),
    ],
)
def test_a_failed_command_shows_the_reason(command: str, code: int, shown: list[str]) -> None:
    found, output = run(command)
    assert found == code
    assert [text for text in shown if text not in output] == []


def test_a_file_may_import_numpy() -> None:
    program = "import os\nimport numpy\nprint(numpy.arange(3).sum())\n"
    assert run("python n.py", {"n.py": program}) == (0, "3\n")


@pytest.mark.parametrize(
    "attempt",
    [
        "open('m.py', 'w')",
        "open('new.py', 'w')",
        "open('/etc/passwd')",
        "open('../m.py')",
        "__import__('os').listdir('/root')",
        "__import__('os').symlink('/etc', 'link')",
        "__import__('subprocess').run(['sh'])",
        "__import__('socket').socket()",
    ],
)
def test_a_program_does_not_leave_the_files(attempt: str) -> None:
    workspace = SandboxWorkspace(FILES)
    code, output = workspace.exec(f'python -c "{attempt}"', timeout_s=2.0)
    assert (code, "Error" in output) == (1, True)
    assert workspace.snapshot() == FILES


@pytest.mark.parametrize(
    "command", ["ls", "", "python", "sh -c 'ls'", "python -i", "python -m pip install x", "python 'm"]
)
def test_other_commands_are_refused(command: str) -> None:
    with pytest.raises(ValueError, match=r"python|command"):
        run(command)


@pytest.mark.parametrize("path", ["/etc/passwd", "../m.py", "a/../../m.py", "..", ".", "", "a\0b", "a\nb", "x" * 201])
def test_a_path_that_leaves_the_folder_is_refused(path: str) -> None:
    workspace = SandboxWorkspace(FILES)
    for use in (lambda: workspace.read(path), lambda: workspace.write(path, "")):
        with pytest.raises(ValueError, match="path"):
            use()
    assert workspace.snapshot() == FILES


def test_one_file_has_one_path() -> None:
    workspace = SandboxWorkspace({"a/b.py": "1"})
    workspace.write("./a/c/../b.py", "2")
    assert workspace.snapshot() == {"a/b.py": "2"}


def test_quotas_hold_and_a_refused_write_changes_nothing() -> None:
    workspace = SandboxWorkspace({"a.py": "1"})
    for path, text in (("a.py", "x" * (MAX_FILE_BYTES + 1)), ("b.py", "\u00e9" * (MAX_FILE_BYTES // 2 + 1))):
        with pytest.raises(ValueError, match=str(MAX_FILE_BYTES)):
            workspace.write(path, text)
    assert workspace.snapshot() == {"a.py": "1"}
    with pytest.raises(ValueError, match=str(MAX_FILES)):
        SandboxWorkspace({f"{number}.py": "" for number in range(MAX_FILES + 1)})
    whole = {f"{number}.py": "x" * MAX_FILE_BYTES for number in range(MAX_BYTES // MAX_FILE_BYTES)}
    SandboxWorkspace(whole)
    with pytest.raises(ValueError, match=str(MAX_BYTES)):
        SandboxWorkspace(whole | {"more.py": "x"})


def test_a_snapshot_is_a_copy() -> None:
    workspace = SandboxWorkspace({"a.py": "1"})
    workspace.snapshot()["a.py"] = "2"
    assert workspace.read("a.py") == "1"


def test_tools_read_write_and_run() -> None:
    workspace = SandboxWorkspace(FILES)
    assert tool(workspace, "read", path="data/d.txt") == "one\ntwo\nthree\n"
    assert tool(workspace, "read", path="data/d.txt", first=2, last=2) == "two\n"
    assert tool(workspace, "write", path="m.py", old="x + 1", new="x + 2") == "ok"
    assert tool(workspace, "write", path="n.py", text="import m\nprint(m.f(1))\n") == "ok"
    assert tool(workspace, "exec", command="python n.py") == "exit 0\n3\n"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read", {"path": "none.py"}),
        ("read", {"path": "m.py", "first": 0}),
        ("read", {"path": 3}),
        ("read", {}),
        ("write", {"path": "m.py"}),
        ("write", {"path": "m.py", "old": "x", "new": "y"}),
        ("write", {"path": "m.py", "old": "absent", "new": "y"}),
        ("write", {"path": "m.py", "old": "", "new": "y"}),
        ("write", {"path": "m.py", "old": "x + 1", "new": "y", "text": "z"}),
        ("write", {"path": "m.py", "text": "z", "mode": "w"}),
        ("exec", {"command": "ls"}),
        ("shell", {"command": "ls"}),
    ],
)
def test_a_mistake_in_a_call_is_an_error_of_the_model(name: str, arguments: dict[str, object]) -> None:
    workspace = SandboxWorkspace(FILES)
    assert tool(workspace, name, **arguments).startswith("error:")
    assert workspace.snapshot() == FILES


def test_an_unreadable_call_gets_its_error() -> None:
    assert use_tool(SandboxWorkspace(FILES), BadCall(error="error: no")) == "error: no"


def test_long_output_keeps_its_ends() -> None:
    output = tool(SandboxWorkspace(FILES), "exec", command='python -c \'print("a" + 9000 * "-" + "z")\'')
    assert output.startswith("exit 0\na---")
    assert output.endswith("---z\n")
    assert len(output) < MAX_RESULT_CHARACTERS + 100
