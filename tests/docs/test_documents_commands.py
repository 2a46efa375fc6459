"""Every command and every YAML block of the documents: parsed, loaded or run here, or marked with what it needs.

A line of commands that ends with a comment `# needs ...` says so to the reader, and is not run here; one of `temper` is still
parsed, and its configuration loaded. Blocks of Python are run by `test_system_documents_env.py`,
`test_system_documents_server.py` and `test_system_documents_loss.py`, but for those whose first line says what they need.
"""

import argparse
import ast
import importlib
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from docs.test_documents import DOCUMENTS, ROOT, text
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from temper.orchestrator.__main__ import parser
from temper.orchestrator.cli.eval_command import is_override
from temper.orchestrator.pipeline.config import KNOWN, load_config
from temper.orchestrator.stages.registry import HELP
from temper.orchestrator.tools.preflight.plan.cards import named_site

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = (
    "temper",
    "make",
    "python",
    "pytest",
    "hf",
    "ray",
    "docker",
    "kubectl",
    "sbatch",
    "git",
    "gym",
    "PYTHONPATH=tests",
    ".",
)
FOREIGN = ("hf", "ray", "docker", "kubectl", "sbatch", "git", "gym")
"""Programs that are not ours: a line that begins with one says what it needs."""
NEEDS = "# needs "
RUN_HERE = ("config", "presets", "new-env", "completion")
"""Commands of `temper` that are run here, in a folder of their own; they take no time and no hardware."""
WITH_THE_DEMO = "configs/demo.yaml"
"""The configuration whose plans and dry runs are made here, as it needs neither a model nor data."""
LOADED = ("run", "plan", "simulate", "doctor", "submit", "bench", "bench-growth")
"""Commands whose configuration is loaded where the repository has it."""
OWN_MODULES = {
    "docs/own_environment.md": "backwards",
    "docs/other_environments.md": "guess",
    "docs/algorithms.md": "mine",
}
"""Pages that show a module of the reader's own, which YAML blocks then name."""
PLACES = re.compile(r"\b(COMMAND|FILE|CONFIG|RUN|NAME|MODEL|DIR|A B|ADDRESS)\b|\.\.\.|\[|<")
"""What a reader fills in: text with such a place is the form of a command."""
CHOSEN = "rollout.engine.max_model_len=131072"
"""What a profile chooses by the hardware and the model, neither of which is here: room for any of the documents' limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command of a document, on one line."""

    document: str
    text: str

    @property
    def words(self) -> list[str]:
        """The command without its comment, as a shell takes it apart."""
        return shlex.split(self.text, comments=True)

    @property
    def needs(self) -> bool:
        """Whether it is marked with what it needs."""
        return NEEDS in self.text


def blocks(document: str, *languages: str) -> list[str]:
    """The document's blocks of code in one of these languages."""
    return [found for language, found in BLOCK.findall(text(document)) if language in languages]


def commands() -> list[Line]:
    """Every line of every block of commands, lines that go on joined; what is printed or drawn is a block of `text`."""
    found = []
    for document in DOCUMENTS:
        for block in blocks(document, ""):
            lines = block.replace("\\\n", " ").splitlines()
            found += [Line(document=document, text=line) for line in lines if line.strip()]
    return found


def spans() -> list[Line]:
    """Every `temper ...` in the prose that is a whole command: one with places to be filled in is a form."""
    return [
        Line(document=document, text=found)
        for document in DOCUMENTS
        for found in re.findall(r"`(temper [^`\n]+)`", BLOCK.sub("", text(document)))
        if not PLACES.search(found)
    ]


ALL = commands()
YAML = [(document, block) for document in DOCUMENTS for block in blocks(document, "yaml")]
IN_A_LINE = [
    (document, found)
    for document in DOCUMENTS
    for found in re.findall(rf"`((?:{'|'.join(KNOWN)}): \{{[^`\n]+\}})`", BLOCK.sub("", text(document)))
]
"""Settings that prose gives in YAML."""
LANGUAGES = {"", "text", "yaml", "python", "json"}
"""Of blocks: commands, what is printed or drawn, settings, code, rows."""


@pytest.fixture(scope="module")
def root_parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    return parser()


@pytest.fixture(scope="module")
def readers_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A reader's folder: the repository's configurations, the modules that the documents show, a tokenizer."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "configs").symlink_to(ROOT / "configs")
    for document, module in OWN_MODULES.items():
        (folder / f"{module}.py").write_text(blocks(document, "python")[0], encoding="utf-8")
    (folder / "models" / "qwen3").mkdir(parents=True)
    Tokenizer(WordLevel()).save(str(folder / "models" / "qwen3" / "tokenizer.json"))
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for module in OWN_MODULES.values():
        sys.modules.pop(module, None)


def parsed(root_parser: argparse.ArgumentParser, line: Line) -> argparse.Namespace | None:
    """What the parser makes of a command of `temper`; None where it ends with help."""
    try:
        given, later = root_parser.parse_known_args(line.words[1:])
    except SystemExit as end:
        if end.code:
            raise
        return None
    assert not later or ("overrides" in given and all(map(is_override, later))), f"{line.document}: {later}"
    if later:
        given.overrides = [*given.overrides, *later]
    return given


def is_run_here(line: Line, given: argparse.Namespace) -> bool:
    """Whether a command takes a moment, and nothing that is not here."""
    if line.needs or given.command in RUN_HERE:
        return not line.needs
    if given.command == "envcheck":
        return not given.data and given.env == "math"
    before = given.command == "plan" or "--dry-run" in line.words
    return before and str(given.config) == WITH_THE_DEMO


@pytest.mark.parametrize("line", [one for one in ALL if one.words[0] == "temper"], ids=lambda line: line.text)
def test_a_command_of_temper_is_one(
    line: Line,
    root_parser: argparse.ArgumentParser,
    readers_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert readers_folder.is_dir()
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    given = parsed(root_parser, line)
    if given is None:
        return
    if given.command in LOADED and given.config is not None and str(given.config).startswith("configs/"):
        assert load_config(given.config, [CHOSEN, *given.overrides]).stages
    if given.command == "plan" and given.gpus:
        assert named_site(given.gpus, host_gib_per_gpu=128, shm_gib=0.0625).named
    if is_run_here(line, given):
        assert given.execute(given) == 0, capsys.readouterr().err
        assert capsys.readouterr().out


@pytest.mark.parametrize("line", spans(), ids=lambda line: line.text)
def test_a_command_of_temper_that_prose_names_is_one(
    line: Line, root_parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        parsed(root_parser, line)
    except SystemExit:  # named alone, without what it is given: command and option are known all the same
        assert re.search(r"arguments are required|expected one argument", capsys.readouterr().err)


def test_the_page_of_commands_has_every_command_but_the_stages(root_parser: argparse.ArgumentParser) -> None:
    (below,) = [one for one in root_parser._actions if isinstance(one, argparse._SubParsersAction)]
    shown = set(re.findall(r"\btemper ([a-z][a-z-]+)", text("docs/commands.md")))
    assert sorted(below.choices.keys() - HELP.keys() - shown) == []


def test_every_other_line_of_commands_is_known_or_marked() -> None:
    unknown = [
        f"{line.document}: {line.text}"
        for line in ALL
        if (line.words[0] in FOREIGN or line.words[0] not in COMMANDS) and not line.needs
    ]
    assert unknown == []


def test_every_block_is_of_a_kind_that_is_looked_at_and_what_is_printed_holds_no_command() -> None:
    found = [(document, language, block) for document in DOCUMENTS for language, block in BLOCK.findall(text(document))]
    assert {(document, language) for document, language, _ in found if language not in LANGUAGES} == set()
    assert all(json.loads(block) for _, language, block in found if language == "json")
    first = {word for _, language, block in found if language == "text" for word in block.split()[:1]}
    assert sorted(first & set(COMMANDS)) == []


MODULES = [one for one in ALL if "-m" in one.words and one.words[0] in ("python", "PYTHONPATH=tests")]


@pytest.mark.parametrize("line", MODULES, ids=lambda line: line.text)
def test_a_module_that_is_run_is_there_and_knows_its_options(line: Line) -> None:
    name, *further = line.words[line.words.index("-m") + 1 :]
    found = importlib.util.find_spec(name)
    assert found is not None, name
    assert found.origin is not None
    folder = Path(found.origin).parent
    sources = list(folder.glob("*.py")) if found.submodule_search_locations else [Path(found.origin)]
    known = "".join(source.read_text(encoding="utf-8") for source in sources)
    assert [option for option in further if option.startswith("--") and f'"{option}"' not in known] == []


def test_files_that_make_and_pytest_are_given_are_there() -> None:
    given = [
        (line.document, word.removeprefix("CONFIG="))
        for line in ALL
        for word in line.words
        if word.startswith(("CONFIG=configs/", "tests/"))
    ]
    assert [(document, file) for document, file in given if not (ROOT / file).exists()] == []


@pytest.mark.parametrize(("document", "given"), IN_A_LINE, ids=[given for _, given in IN_A_LINE])
def test_settings_that_prose_gives_in_yaml_are_settings(document: str, given: str, tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(given, encoding="utf-8")
    over = [CHOSEN, "name=documents", *([] if given.startswith("envs") else ["envs={math: {}, tool_use: {}}"])]
    assert load_config(tmp_path / "line.yaml", over).name == "documents", document


@pytest.mark.parametrize(("document", "block"), YAML, ids=[f"{document}-{at}" for at, (document, _) in enumerate(YAML)])
def test_a_block_of_yaml_is_a_configuration(document: str, block: str, readers_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "block.yaml").write_text(block.replace("/models/", f"{readers_folder}/models/"), encoding="utf-8")
    own = yaml.safe_load(block)
    over = [CHOSEN] if "name" in own else [CHOSEN, "name=documents"]
    over += [] if "envs" in own else ["envs={math: {}, tool_use: {}}"]
    config = load_config(tmp_path / "block.yaml", over)
    assert config.name == own.get("name", "documents")
    assert own.keys() <= vars(config).keys() | config.sections.keys()


@pytest.mark.parametrize("document", [one for one in DOCUMENTS if blocks(one, "python")])
def test_a_block_of_python_runs_or_names_what_it_needs(document: str) -> None:
    first, *further = blocks(document, "python")
    needing = further if document in OWN_MODULES else [first, *further]
    for block in needing:
        if not block.startswith(NEEDS):
            exec(compile(block, document, "exec"), {})  # our own page
    for block in [first, *further]:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                assert [alias.name for alias in node.names if alias.name not in vars(module)] == []
