"""Packaged configurations resolve by name from any folder."""

from pathlib import Path

import pytest

from temper.orchestrator.config.text import SHIPPED, config_file, packaged_file


def test_a_name_below_configs_is_a_local_file_or_else_that_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    demo = Path("configs/demo.yaml")
    assert config_file(demo) == packaged_file(demo) == SHIPPED / "demo.yaml"
    demo.parent.mkdir()
    demo.write_text("name: mine")
    assert config_file(demo) == demo
    assert packaged_file(demo) is None


@pytest.mark.parametrize("name", ["configs/demoo.yaml", "demo.yaml", "configs/../pyproject.toml", "configs"])
def test_a_file_that_is_neither_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=name):
        config_file(Path(name))


def test_the_nearest_file_of_the_folder_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text("name: mine")
    with pytest.raises(FileNotFoundError, match=r"base\.yaml"):
        config_file(Path("bas.yaml"))
    with pytest.raises(FileNotFoundError, match=r"base\.yaml"):
        config_file(tmp_path / "bas.yml")
