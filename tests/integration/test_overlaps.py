"""`requirements/overlaps.py`: files that two wheels share, read from a folder and from a loopback index."""

import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from requirements.overlaps import Pin, best_wheel, main, overlaps, pins

FLASHINFER = Pin(name="flashinfer-python", version="0.7.0")


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    """Write a wheel that holds these files."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for file, text in files.items():
            made.writestr(file, text)
        made.writestr(f"{name}-1.0.dist-info/RECORD", name)
    return path


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with the wheels of two packages that share two files: one differs and one is equal."""
    wheel(tmp_path, "whole", {"cuda/driver.so": "12.6", "cuda/empty.py": "", "whole/own.py": "1"})
    wheel(
        tmp_path, "parts", {"parts-1.0.data/platlib/cuda/driver.so": "13.5", "cuda/empty.py": "", "parts/own.py": "2"}
    )
    (tmp_path / "lock.txt").write_text("# made\nparts==1.0\n    # via whole\nwhole==1.0\nsource-only==2.0\n")
    return tmp_path


@pytest.fixture
def index(two: Path) -> Iterator[str]:
    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rstrip("/").rpartition("/")[2]
            if name.endswith(".whl"):
                first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                body, status = (two / name).read_bytes()[int(first) : int(last) + 1], 206
            else:
                found = [
                    {
                        "filename": path.name,
                        "size": path.stat().st_size,
                        "url": f"http://{self.headers['Host']}/{path.name}",
                    }
                    for path in two.glob(f"{name}-*.whl")
                ]
                body, status = json.dumps({"files": found}).encode(), 200
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()


def test_a_lock_whose_packages_share_a_file_is_refused(
    two: Path, index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(two / "lock.txt"), "--index", index]) == 1
    said = capsys.readouterr().out
    assert "parts==1.0 and whole==1.0 share 1 files: cuda/driver.so\n" in said
    assert "1 pairs overlap; without a wheel: source-only==2.0" in said


def test_the_wheel_is_the_one_that_an_installer_takes() -> None:
    names = [
        "flashinfer_python-0.7.0-cp311-cp311-win_amd64.whl",
        "flashinfer_python-0.7.0-cp310-cp310-manylinux_2_28_x86_64.whl",
        "flashinfer_python-0.7.0-py3-none-any.whl",
        "flashinfer_python-0.7.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "flashinfer_python-0.7.1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "flashinfer_python-0.7.0.tar.gz",
    ]
    assert best_wheel(names, FLASHINFER) == names[3]
    assert best_wheel(names[:2], FLASHINFER) is None


@pytest.mark.parametrize("stack", ["cpu", "gpu"])
def test_locks_installed_together_agree_on_each_version(stack: str) -> None:
    folder = Path(__file__).parents[2] / "requirements"
    pinned: dict[str, str] = {}
    for lock in (stack, "dev", "puzzles", "trackers"):
        for pin in pins((folder / f"{lock}.txt").read_text(encoding="utf-8")):
            assert pinned.setdefault(pin.name, pin.version) == pin.version, pin


def test_what_nothing_imports_may_be_in_two_packages() -> None:
    one, other = Pin(name="one", version="1"), Pin(name="other", version="1")
    assert overlaps({one: {"build_backend.py": (1, 1), "x": (1, 1)}, other: {"build_backend.py": (2, 1)}}) == {}
