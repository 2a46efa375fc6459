"""Secrets are blanked by key and by shape in every file that a run writes, but the run keeps them."""

import json
from pathlib import Path

import pytest
from support.run_folders import with_checkpoint

from temper.orchestrator.__main__ import main
from temper.orchestrator.pipeline.config import KINDS, flat_config, load_config, save_config
from temper.orchestrator.pipeline.continuation import check_continuation
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.redaction import BLANK, blank_text, is_secret, redact
from temper.orchestrator.tools.inspect.report.report import write_report

DEMO = Path("configs/demo.yaml")
TOKEN = "hf_" + "aB3dE5gH7jK9" * 3
JSON_WEB_TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
URI = "http://ann:s3cret-word@tracker:5000/x"
OWN = """
from temper.envs.core.definition import EnvDefinition

ENVIRONMENT = EnvDefinition(id="shop", entry_point="shop:Shop", configure=lambda options: ENVIRONMENT)
"""
"""A custom environment that accepts any options."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An override that adds the environment `shop`. A test may add options to it."""
    (tmp_path / "shop.py").write_text(OWN, encoding="ascii")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "envs.shop.share=0"


@pytest.mark.parametrize(
    ("keys", "secret"),
    [
        ("token hf_token HF_TOKEN apiKey OPENAI_API_KEY db_password clientSecret auth authToken api_token", True),
        ("access_token backend_token append_token secret_token_id token_secret tokenIdentity", True),
        ("eos_token bosToken PAD_TOKEN stop_token eos_token_id image_token_ids nll_per_token token_range", False),
        ("token_level_loss token_budget", False),
    ],
)
def test_a_key_names_a_secret_in_any_spelling_and_no_token_of_text(keys: str, secret: bool) -> None:
    assert {key: is_secret(key) for key in keys.split()} == dict.fromkeys(keys.split(), secret)


def test_no_setting_of_ours_is_taken_for_a_secret() -> None:
    assert [key for key in KINDS if any(map(is_secret, key.split(".")))] == []


def test_an_option_that_names_a_token_of_text_is_there_when_the_run_is_loaded_again(tmp_path: Path, shop: str) -> None:
    config = load_config(DEMO, [shop, "envs.shop.options={eos_token: '<|end|>', pad_token_id: 7}"])
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml", []) == config


@pytest.mark.parametrize("path", sorted(Path("configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_setting_of_a_shipped_configuration_is_taken_for_a_secret(path: Path) -> None:
    shown = flat_config(load_config(path, []))
    assert shown["rollout.limits.turn_tokens"].isdigit()
    assert BLANK not in json.dumps(shown)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("http://ann:word@host:5000/a", "http://[blanked]@host:5000/a"),
        ("sqlite:////data/a@b/mlflow.db", "sqlite:////data/a@b/mlflow.db"),
        ("https://host/a?token=abc&n=3", "https://host/a?token=[blanked]&n=3"),
        ("https://host/a?pwd=abc", "https://host/a?pwd=[blanked]"),
        ("give 'a.token=${oc.env:NAME}'", "give 'a.token=${oc.env:NAME}'"),
        ("a.token=${oc.env:NAME}abc", "a.token=[blanked]"),
        ("learner.micro_batch_tokens=4096", "learner.micro_batch_tokens=4096"),
        (f"got {TOKEN}.", "got [blanked]."),
        ("key sk-proj-abcdefghijklmnop1234", "key [blanked]"),
        ("AKIAABCDEFGHIJKLMNOP", "[blanked]"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [blanked]"),
        ("basic arithmetic, a bearer of news", "basic arithmetic, a bearer of news"),
        (JSON_WEB_TOKEN, "[blanked]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\n", "[blanked]\n"),
    ],
)
def test_a_secret_is_known_by_its_shape(text: str, kept: str) -> None:
    assert blank_text(text) == kept


def test_everything_under_a_secret_key_is_blanked() -> None:
    given = {"auth": {"user": "ann", "codes": [1, "two"]}, "token": None, "hosts": [f"http://a:{TOKEN}@b"], "n": 3}
    assert redact(given) == {
        "auth": {"user": BLANK, "codes": [BLANK, BLANK]},
        "token": None,
        "hosts": [f"http://{BLANK}@b"],
        "n": 3,
    }


def test_no_file_of_a_run_holds_its_secrets_and_the_run_can_be_continued(
    tmp_path: Path, folder: RunDir, shop: str
) -> None:
    given = [shop, f"tracking.experiment=of {TOKEN}", f"runs_dir={tmp_path}", "name=job"]
    config = load_config(DEMO, [*given, f"tracking.uri={URI}", "envs.shop.options={api_key: sesame, n: 7}"])
    assert (config.tracking.uri, config.envs["shop"].options["api_key"]) == (URI, "sesame")  # the run keeps them
    check_continuation(config, folder)
    with_checkpoint(folder, "sft")
    check_continuation(load_config(DEMO, [*given, "envs.shop.options={api_key: renewed, n: 7}"]), folder)
    with pytest.raises(ValueError, match=r"envs\.shop\.options\.n: 7 -> 8"):
        check_continuation(load_config(DEMO, [*given, "envs.shop.options={api_key: renewed, n: 8}"]), folder)
    check_continuation(config, folder)
    write_report(folder.root)
    files = [path for path in folder.root.rglob("*") if path.is_file()]
    assert {"config.yaml", "manifest.json", "report.html", "report.json"} <= {path.name for path in files}
    written = "".join(path.read_text(encoding="utf-8") for path in files) + json.dumps(flat_config(config))
    assert f"http://{BLANK}@tracker:5000/x" in written
    for secret in ("s3cret-word", "sesame", "renewed", TOKEN):
        assert secret not in written


def test_a_secret_of_the_environment_stays_a_reference_to_it_and_any_other_is_asked_for(
    tmp_path: Path, shop: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "config.yaml"
    monkeypatch.setenv("SHOP_TOKEN", "word-of-the-shop")
    config = load_config(DEMO, [shop, "envs.shop.options={api_key: '${oc.env:SHOP_TOKEN}'}"])
    assert config.envs["shop"].options == {"api_key": "word-of-the-shop"}
    save_config(config, saved)
    assert "${oc.env:SHOP_TOKEN}" in saved.read_text(encoding="utf-8")
    assert load_config(saved, []) == config
    monkeypatch.delenv("SHOP_TOKEN")
    with pytest.raises(ValueError, match="SHOP_TOKEN"):
        load_config(saved, [])
    save_config(config, saved)  # the saved file has no origin of the secret
    with pytest.raises(ValueError, match=r"envs\.shop\.options\.api_key"):
        load_config(saved, [])
    assert main(["config", str(saved), "--resolved"]) == 2
    assert "best as 'envs.shop.options.api_key=${oc.env:NAME}' from" in capsys.readouterr().err
    other = tmp_path / "other.yaml"
    other.write_text(saved.read_text(encoding="utf-8").replace("seed: 1\n", "seed: 2\n"), encoding="utf-8")
    assert main(["config", "--diff", str(saved), str(other)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["setting", "seed", "another"]
    again = "envs.shop.options.api_key=word-of-the-shop"
    assert load_config(saved, [again]) == config
