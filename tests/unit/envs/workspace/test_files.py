"""The files of a workspace: quotas, paths, and programs on them."""

import os
import sys
from pathlib import Path

import pytest

from temper.envs.core.turn_text import BadCall, Call
from temper.envs.workspace.files import Workspace
from temper.envs.workspace.folder import MAX_BYTES, MAX_FILE_BYTES, MAX_FILES, files_in
from temper.envs.workspace.tools import MAX_RESULT_CHARACTERS, use_tool

FILES = {
    "m.py": "def f(x):\n    return x + 1\n",
    "pkg/a.py": "from m import f\nVALUE = f(2)\n",
    "data/d.txt": "one\ntwo\nthree\n",
    "test_m.py": (
        "import unittest\nfrom m import f\nclass T(unittest.TestCase):\n    def test(self):\n"
        "        self.assertEqual(f(1), 3)\nif __name__ == '__main__':\n    unittest.main()\n"
    ),
    "ends.py": "import sys\nprint(sys.argv, __name__)\nsys.exit(3)\n",
    "numbers.txt": "",
    "array.txt": "import os\nimport numpy\n",
}


def run(command: str, files: dict[str, str] = FILES) -> str:
    return Workspace(files).exec(command)


def tool(workspace: Workspace, tool_name: str, **arguments: object) -> str:
    return use_tool(workspace, Call(name=tool_name, arguments=arguments))


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("python -c 'print(1)'", "1\n\nexit 0\n"),
        ("python3 -c 'import pkg.a; print(pkg.a.VALUE)'", "3\n\nexit 0\n"),
        ("python ends.py a 'b c'", "['ends.py', 'a', 'b c'] __main__\n\nexit 3\n"),
        ("python -c 'print(open(\"data/d.txt\").read(3))'", "one\n\nexit 0\n"),
        ("python -c 'import pathlib; print(pathlib.Path(\"data/d.txt\").read_bytes()[:3])'", "b'one'\n\nexit 0\n"),
        ("python -c 'import os; print(5, flush=True); os._exit(0)'", "5\n"),
        ("python -c 'raise SystemExit(\"no\")'", "\nexit no\n"),
        ("python -c ''", "\nexit 0\n"),
    ],
)
def test_a_command_gives_its_output_and_its_code(command: str, printed: str) -> None:
    assert run(command) == printed


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python test_m.py", ["test_m.py", "AssertionError: 2 != 3", "exit 1"]),
        ("python -c 'import m; m.f(None)'", ["return x + 1", "TypeError", "exit 1"]),
        ("python -c 'import json; json.loads(3)'", ["/python/lib/", "TypeError", "exit 1"]),
        ("python none.py", ["none.py", "exit 2"]),
        ("python -c 'import os; os._exit(7)'", ["7"]),
    ],
)
def test_a_failed_command_shows_the_reason(command: str, shown: list[str]) -> None:
    output = run(command)
    assert [text for text in shown if text not in output] == []
    assert sys.base_prefix not in output


def test_the_programs_of_an_episode_share_a_time_budget() -> None:
    workspace = Workspace(FILES, left_s=0.5)
    assert workspace.exec("python -c 'import time; time.sleep(9)'").startswith("time: over 0.5 s")
    with pytest.raises(ValueError, match="no time left"):
        workspace.exec("python ends.py")


def test_a_file_may_import_numpy() -> None:
    program = "import os\nimport numpy\nprint(numpy.arange(3).sum())\n"
    assert run("python n.py", {"n.py": program}) == "3\n\nexit 0\n"


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
    workspace = Workspace(FILES)
    output = workspace.exec(f'python -c "{attempt}"')
    assert "Error" in output
    assert output.endswith("exit 1\n")
    assert workspace.files == FILES


@pytest.mark.parametrize(
    "command",
    ["ls", "", "python", "python -c", "sh -c 'ls'", "python -i", "python -m unittest", "python 'm", "ls; python m.py"],
)
def test_other_commands_are_refused(command: str) -> None:
    with pytest.raises(ValueError, match=r"python|quotation"):
        run(command)


@pytest.mark.parametrize("path", ["/etc/passwd", "../m.py", "a/../../m.py", "..", ".", "", "a\0b", "a\nb", "x" * 201])
def test_a_path_that_leaves_the_folder_is_refused(path: str) -> None:
    workspace = Workspace(FILES)
    for use in (lambda: workspace.read(path), lambda: workspace.write(path, "")):
        with pytest.raises(ValueError, match="path"):
            use()
    assert workspace.files == FILES


def test_one_file_has_one_path() -> None:
    workspace = Workspace({"a/b.py": "1"})
    workspace.write("./a/c/../b.py", "2")
    assert workspace.files == {"a/b.py": "2"}


def test_quotas_hold_and_a_refused_write_changes_nothing() -> None:
    workspace = Workspace({"a.py": "1"})
    for path, text in (("a.py", "x" * (MAX_FILE_BYTES + 1)), ("b.py", "\u00e9" * (MAX_FILE_BYTES // 2 + 1))):
        with pytest.raises(ValueError, match=str(MAX_FILE_BYTES)):
            workspace.write(path, text)
    assert workspace.files == {"a.py": "1"}
    with pytest.raises(ValueError, match=str(MAX_FILES)):
        Workspace({f"{number}.py": "" for number in range(MAX_FILES + 1)})
    whole = {f"{number}.py": "x" * MAX_FILE_BYTES for number in range(MAX_BYTES // MAX_FILE_BYTES)}
    Workspace(whole)
    with pytest.raises(ValueError, match=str(MAX_BYTES)):
        Workspace(whole | {"more.py": "x"})


def test_tools_read_write_and_run() -> None:
    workspace = Workspace(FILES)
    assert tool(workspace, "read", path="data/d.txt") == "one\ntwo\nthree\n"
    assert tool(workspace, "read", path="data/d.txt", first=2, last=2) == "two\n"
    assert tool(workspace, "read", path="data/d.txt", first=2.0, last=2.0) == "two\n"
    assert tool(workspace, "write", path="m.py", old="x + 1", new="x + 2") == "ok"
    assert tool(workspace, "write", path="n.py", text="import m\nprint(m.f(1))\n") == "ok"
    assert tool(workspace, "exec", command="python n.py") == "3\n\nexit 0\n"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read", {"path": "none.py"}),
        ("read", {"path": "m.py", "first": 0}),
        ("read", {"path": "m.py", "first": 1.5}),
        ("read", {"path": "m.py", "last": "1"}),
        ("read", {"path": "m.py", "last": None}),
        ("read", {"path": 3}),
        ("read", {}),
        ("write", {"path": "m.py"}),
        ("write", {"path": "m.py", "old": "x", "new": "y"}),
        ("write", {"path": "m.py", "old": "absent", "new": "y"}),
        ("write", {"path": "m.py", "old": "", "new": "y"}),
        ("write", {"path": "m.py", "old": "x + 1", "new": "y", "text": "z"}),
        ("write", {"path": "m.py", "text": "z", "mode": "w"}),
        ("exec", {"command": "ls"}),
        ("exec", {"command": ["python", "m.py"]}),
        ("shell", {"command": "ls"}),
    ],
)
def test_a_mistake_in_a_call_is_an_error_of_the_model(name: str, arguments: dict[str, object]) -> None:
    workspace = Workspace(FILES)
    with pytest.raises(ValueError, match="."):
        tool(workspace, name, **arguments)
    assert workspace.files == FILES


def test_an_unreadable_call_gets_its_error() -> None:
    with pytest.raises(ValueError, match="^no$"):
        use_tool(Workspace(FILES), BadCall(error="error: no"))


def test_long_output_keeps_its_ends() -> None:
    output = tool(Workspace(FILES), "exec", command='python -c \'print("a" + 9000 * "-" + "z")\'')
    assert output.startswith("a---")
    assert output.endswith("---z\n\nexit 0\n")
    assert len(output) < MAX_RESULT_CHARACTERS + 100


def test_files_of_a_folder_are_texts_within_the_quotas(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / ".git").mkdir()
    texts = {"m.py": "x = 1\n", "src/n.py": "y = 2\n", ".git/config": "z", "src/.hidden": "z"}
    for path, text in texts.items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89\xff")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    (tmp_path / "linked").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    assert files_in(tmp_path) == {"m.py": "x = 1\n", "src/n.py": "y = 2\n"}
    (tmp_path / "large.py").write_text("#" * 65_537, encoding="utf-8")
    with pytest.raises(ValueError, match=r"large\.py"):
        files_in(tmp_path)
