"""The screenshot of the viewer in docs/ is drawn by one command."""

import struct
from pathlib import Path

import pytest
from support.browsing import CHROMIUM, NONE_HERE
from support.doc_pictures import HEIGHT, PICTURE, WIDTH, draw_view, write_pictured_run


def size_of(picture: Path) -> tuple[int, int]:
    """Return the width and the height in a PNG's head."""
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return width, height


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=NONE_HERE)
def test_the_viewer_is_drawn_in_its_fixed_size(tmp_path: Path) -> None:
    picture = tmp_path / "view.png"
    draw_view(write_pictured_run(tmp_path / "demo"), picture)
    assert size_of(picture) == (WIDTH, HEIGHT)


def test_the_picture_in_the_documents_has_that_size() -> None:
    assert size_of(PICTURE) == (WIDTH, HEIGHT)
