"""The layout rules of CONTRIBUTING.md, held over the source itself."""

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("rewards", "envs", "rollout", "learner", "orchestrator")
FAMILIES = ("mathematics", "coding", "tool_use", "retail", "airline", "puzzles", "games", "questions", "remote")
"""Families of environments: none knows another."""
ROOMS = {
    "envs": (
        "core",
        "data",
        "presets",
        "sandbox",
        "tools",
        "task_env",
        "service",
        FAMILIES,
        "multi_turn_calls",
        "catalog",
        "binding",
        "task_rows",
        "streamed",
        "source",
        "registration",
        "play",
        "playback",
    ),
    "rollout": (
        "sampling",
        "expert_choices",
        "token_arrays",
        "trajectory",
        "trajectory_json",
        "tokenizer",
        "escaping",
        "formats",
        "budget",
        "weights",
        "engines",
        "episodes",
        "remote",
        "pool",
        "serving",
    ),
    "learner": (
        "config",
        "losses",
        "batches",
        "token_records",
        "models",
        "engine",
        "publisher",
        "bucket_publisher",
        "adapter_publisher",
        "rank_pushes",
        "training_state",
        "saving",
        "update",
        "imports_kept",
        "worker",
        "trainer_group",
    ),
    "orchestrator": (
        "deadline",
        "step_times",
        "shifts",
        "mixture",
        "ticket_ledger",
        "slots",
        "buffer_state",
        "buffer",
        "loop_sides",
        "loop",
        "shaping",
        "failure_watch",
        "skip_watch",
        "band_watch",
        "run",
        "tracking",
        "audit",
        "data",
        "settings",
        "recording",
        "cluster",
        "supervision",
        "reporting",
        "session",
        "evaluation",
        "stages",
        "profiles",
        "pipeline",
        "reference",
        "grading",
        "new_env",
        "viewing",
        "watching",
        "explaining",
        "replaying",
        "bench",
        "planning",
        "simulation",
        "doctor",
        "gpu_check",
        "parity",
        "cli",
        "__main__",
    ),
}
"""The sub-packages and modules of a package, lowest first; each imports itself and those before it. Entries of a tuple
within stand side by side and do not know each other."""
MOST_FILES = 16
LEARNER_TAKES = (
    "temper.rollout.trajectory",
    "temper.rollout.expert_choices",
    "temper.rollout.token_arrays",
    "temper.rollout.weights",
)
"""All that `learner` knows of `rollout`: what was sampled, and how weights are handed over."""
HOMES = {
    "ray": (
        "orchestrator/cluster/ray_cluster.py",
        "orchestrator/cluster/actors.py",
        "orchestrator/cluster/hardware.py",
        "orchestrator/cluster/node_facts.py",
        "orchestrator/cluster/bundles.py",
        "orchestrator/cluster/rollout_actors.py",
        "orchestrator/cluster/trainer_actors.py",
        "orchestrator/cluster/transport_choice.py",
        "orchestrator/cluster/ray_jobs.py",
        "orchestrator/cluster/crowded_actors.py",
    ),
    "vllm": (
        "rollout/engines/request_params.py",
        "rollout/engines/rollout_arguments.py",
        "rollout/engines/vllm_engine.py",
        "rollout/engines/vllm_scoring.py",
        "rollout/engines/vllm_sleep.py",
        "rollout/engines/vllm_stats.py",
        "rollout/engines/vllm_worker.py",
        "rollout/engines/runners/expert_recorder.py",
        "rollout/engines/runners/batch_thought_processor.py",
        "rollout/engines/runners/draft_sampler.py",
        "rollout/engines/runners/thought_processor.py",
        "rollout/serving/family_parser.py",
        "rollout/serving/server.py",
    ),
    "peft": ("learner/models/adapters.py",),
    "deepspeed": (
        "learner/engine/deepspeed_engine.py",
        "learner/engine/frozen_model.py",
        "learner/engine/optimizer_state.py",
    ),
    "mlflow": (
        "orchestrator/tracking/mlflow/batches.py",
        "orchestrator/tracking/mlflow/files.py",
        "orchestrator/tracking/mlflow/registry.py",
        "orchestrator/tracking/mlflow/run.py",
        "orchestrator/tracking/mlflow/traces.py",
    ),
    "wandb": ("orchestrator/tracking/sinks/wandb_sink.py",),
    "trackio": ("orchestrator/tracking/sinks/trackio_sink.py",),
    "omegaconf": ("orchestrator/config/text.py",),
    "bm25s": ("envs/tools/corpus.py",),
    "jsonschema": ("rewards/json_schemas.py",),
    "datasets": ("envs/data/folder.py", "envs/data/tables.py", "orchestrator/tools/bench/beside_trl/trl_process.py"),
    "trl": ("orchestrator/tools/bench/beside_trl/trl_process.py",),
    "huggingface_hub": ("envs/data/folder.py", "envs/data/hub.py"),
    "mamba_ssm": (),
}
LATE_IMPORTS = {
    "envs/data/rows.py": [
        "temper.envs.data.tables.files_of",
        "temper.envs.data.tables.table_rows",
    ],
    "envs/tools/corpus.py": ["bm25s"],
    "orchestrator/cli/compare_command.py": [
        "temper.orchestrator.tools.inspect.report.compare.compare",
        "temper.orchestrator.tools.inspect.report.compare.read_group",
        "temper.orchestrator.tools.inspect.report.compare_page.write_comparison",
        "temper.orchestrator.tools.inspect.report.pairs.compare_places",
        "temper.orchestrator.tools.inspect.report.pairs.lines",
        "temper.orchestrator.run.folder.write_json",
    ],
    "orchestrator/cli/config_command.py": [
        "temper.orchestrator.pipeline.reference.differences.differences",
        "temper.orchestrator.pipeline.reference.editor_schema.editor_schema",
        "temper.orchestrator.pipeline.reference.explained.explain",
        "temper.orchestrator.pipeline.reference.resolved_file.resolve",
        "temper.orchestrator.pipeline.reference.resolved_file.resolved_yaml",
        "temper.orchestrator.pipeline.reference.settings_page.settings_page",
    ],
    "orchestrator/cli/doctor_command.py": [
        "temper.orchestrator.tools.preflight.doctor.checks.examine",
        "temper.orchestrator.tools.preflight.doctor.subject.read_subject",
    ],
    "orchestrator/cli/regrade_command.py": ["temper.orchestrator.tools.debug.grading.recorded.regraded"],
    "orchestrator/cli/completion_command.py": ["temper.orchestrator.pipeline.reference.words.words_of_settings"],
    "orchestrator/cli/eval_command.py": ["temper.orchestrator.cli.run_eval.run_eval"],
    "orchestrator/cli/parity_command.py": ["temper.orchestrator.cli.run_parity.run_parity"],
    "orchestrator/cli/plan_command.py": [
        "temper.orchestrator.tools.preflight.plan.answer.answer_comparison",
        "temper.orchestrator.tools.preflight.plan.answer.answer_plan",
        "temper.orchestrator.tools.preflight.plan.assumptions.Assumptions",
    ],
    "orchestrator/cli/explain_command.py": [
        "temper.orchestrator.tools.inspect.explain.explanation.explain",
        "temper.orchestrator.tools.inspect.explain.sentences.sentences",
    ],
    "orchestrator/cli/replay_command.py": [
        "temper.orchestrator.tools.debug.replay.answer.answer_replay",
        "temper.orchestrator.tools.debug.replay.answer.answer_replayable",
        "temper.orchestrator.tools.debug.replay.replay.ReplayRequest",
    ],
    "orchestrator/cli/run_arguments.py": ["temper.orchestrator.cli.run_commands.execute"],
    "orchestrator/cli/run_commands.py": [
        "temper.orchestrator.tools.bench.all.bench",
        "temper.orchestrator.tools.bench.all.print_bench",
        "temper.orchestrator.tools.bench.growth.bench_growth",
        "temper.orchestrator.tools.bench.growth.write_growth",
    ],
    "orchestrator/cli/simulate_command.py": [
        "temper.orchestrator.tools.preflight.plan.assumptions.Assumptions",
        "temper.orchestrator.tools.preflight.simulation.answer.answer_simulation",
        "temper.orchestrator.tools.preflight.simulation.speeds.START_S",
        "temper.orchestrator.tools.preflight.simulation.study.Asked",
        "temper.orchestrator.tools.preflight.simulation.study.ground_of",
    ],
    "orchestrator/cluster/trainer_actors.py": ["temper.learner.worker.TrainerWorker"],
    "orchestrator/tracking/mlflow/tracker.py": [
        "temper.orchestrator.tracking.mlflow.run.MlflowRun",
        "temper.orchestrator.tracking.mlflow.stage_runs.StageRuns",
    ],
    "orchestrator/tracking/sinks/process.py": [
        "temper.orchestrator.tracking.sinks.trackio_sink.TrackioSink",
        "temper.orchestrator.tracking.sinks.wandb_sink.WandbSink",
    ],
    "orchestrator/cli/serve_command.py": [
        "temper.rollout.budget.config.ThoughtConfig",
        "temper.rollout.engines.vllm_settings.prepare_environment",
        "temper.rollout.serving.server.ServerConfig",
        "temper.rollout.serving.server.serve",
    ],
    "rollout/episodes/worker.py": ["temper.rollout.engines.vllm_engine.VllmEngine"],
}
"""Imports that stand inside a function because they take long and only one process needs them, never for a circle."""
LONGEST_FILE = 500

SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
TEXT_SUFFIXES = (".py", ".md", ".yaml", ".toml", ".sh", ".txt", ".in", ".jinja")


@functools.cache
def imported(tree: ast.AST) -> list[tuple[int, str]]:
    """Every module that a file imports, with its line; `from a import b` counts as `a.b`, since `b` may be a module."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("name", TREES)
def test_imports_point_down_only(name: str) -> None:
    layer = name.split("/")[0]
    above = LAYERS[LAYERS.index(layer) + 1 :]
    wrong = [(line, module) for line, module in imported(TREES[name]) if module.split(".")[0] in above]
    assert wrong == [], f"{layer} must not know {', '.join(above)}"


def room(module: str) -> tuple[str, str]:
    """Return the package of a module and the sub-package, or module, in which it stands; "" for the package itself."""
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0]


@pytest.mark.parametrize("name", [name for name in TREES if not name.endswith("__init__.py")])
def test_rooms_import_those_below_only(name: str) -> None:
    package, own = room(name.removesuffix(".py").replace("/", "."))
    if package not in ROOMS:
        return
    places = {
        entry: rank
        for rank, entries in enumerate(ROOMS[package])
        for entry in ((entries,) if isinstance(entries, str) else entries)
    }
    wrong = []
    for line, module in imported(TREES[name]):
        other_package, other = room(module)
        if other_package == package and other != own and not places[other] < places[own]:
            wrong.append((line, module))
    assert wrong == [], f"{package}/{own} must not know them"


@pytest.mark.parametrize("package", ROOMS)
def test_the_head_of_a_package_names_its_rooms_in_their_order(package: str) -> None:
    entries = [name for entry in ROOMS[package] for name in ((entry,) if isinstance(entry, str) else entry)]
    rooms = [name for name in entries if (ROOT / package / name).is_dir() or name in ("loop", "worker", "task_env")]
    heads = re.findall(r"^    (\w.*?)(?:  |$)", ast.get_docstring(TREES[f"{package}/__init__.py"]) or "", re.MULTILINE)
    listed = re.findall(r"\w+", " ".join(heads))
    assert [name for name in listed if name in rooms] == rooms


def test_no_folder_is_a_crowd() -> None:
    folders: dict[str, int] = {}
    for name in TREES:
        if not name.endswith("__init__.py"):
            folders[name.rpartition("/")[0]] = folders.get(name.rpartition("/")[0], 0) + 1
    assert {folder: files for folder, files in folders.items() if files > MOST_FILES} == {}


def test_relative_imports_are_not_used() -> None:
    wrong = [(name, line) for name, tree in TREES.items() for line, module in imported(tree) if module.startswith(".")]
    assert wrong == []


def test_the_learner_takes_only_what_was_sampled_from_the_rollout() -> None:
    wrong = [
        (name, line, module)
        for name, tree in TREES.items()
        if name.startswith("learner/")
        for line, module in imported(tree)
        if module.split(".")[0] == "rollout"
        and not any(module == taken or module.startswith(f"{taken}.") for taken in LEARNER_TAKES)
    ]
    assert wrong == []


@pytest.mark.parametrize("library", HOMES)
def test_a_heavy_library_is_imported_only_in_its_home(library: str) -> None:
    users = {name for name, tree in TREES.items() for _, module in imported(tree) if module.split(".")[0] == library}
    assert users == set(HOMES[library])


def test_no_import_hides_inside_a_function() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    hidden: dict[str, list[str]] = {}
    for name, tree in TREES.items():
        for function in (node for node in ast.walk(tree) if isinstance(node, functions)):
            for _, module in imported(function):
                hidden.setdefault(name, []).append(module)
    assert {name: sorted(modules) for name, modules in hidden.items()} == LATE_IMPORTS


def test_no_module_shadows_the_standard_library() -> None:
    shadows = [name for name in TREES if Path(name).stem in sys.stdlib_module_names]
    assert shadows == []


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = [name for name in TREES if Path(name).stem in ("utils", "util", "common", "misc", "helpers")]
    assert drawers == []


def test_no_file_is_long() -> None:
    files = [*SOURCES, *(path for layer in LAYERS for path in (ROOT / layer).rglob("*.js"))]
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_no_signature_of_ours_takes_a_bag_of_keywords() -> None:
    bags = [
        (name, node.lineno)
        for name, tree in TREES.items()
        for body in (tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef)))
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.kwarg is not None
    ]
    assert bags == []


NO_VERBS = re.compile(
    r"A|All|An|Any|As|At|Below|Beside|Between|Both|By|Each|Either|Every|Exactly|False|For|"
    r"From|Half|How|If|In|Its|Just|Many|Most|Neither|No|None|Not|Nothing|Of|On|One|Only|Or|"
    r"Same|Some|Such|That|The|There|These|They|This|Those|To|True|Two|Up|What|When|Where|"
    r"Whether|Which|Who|Whose|Why|With|Without"
)
"""First words of docstrings that say what something is."""
THIRD_PERSON = re.compile(r".*[^s]s")
"""`Returns`, and nouns in the plural."""
PARTICIPLE = re.compile(r".*[aeiouy].*ing")
SAYS_WHAT_IS = {"is", "are", "was", "has", "have", "of"}
"""Second words after a noun, as in `Time is counted from ...`."""


def begins_with_a_verb(docstring: str) -> bool:
    """Say whether a docstring begins as an order does, as far as the words themselves show it."""
    first, second = [word.rstrip(",.:;") for word in [*docstring.split(), "", ""][:2]]
    if re.fullmatch(r"[A-Z][a-z]+", first) is None or NO_VERBS.fullmatch(first) or second in SAYS_WHAT_IS:
        return False
    return THIRD_PERSON.fullmatch(first) is None and PARTICIPLE.fullmatch(first) is None


@pytest.mark.parametrize(
    "docstring", ["Return the sum.", "Bring it.", "Pass it on.", "Stop.", "Run, or stand still.", "Discuss it."]
)
def test_an_order_begins_with_a_verb(docstring: str) -> None:
    assert begins_with_a_verb(docstring)


@pytest.mark.parametrize(
    "docstring",
    ["The sum.", "Returns the sum.", "Returning it.", "JSON data.", "`x` is the sum.", "Time is counted.", "sum", ""],
)
def test_what_says_what_something_is_begins_with_no_verb(docstring: str) -> None:
    assert not begins_with_a_verb(docstring)


def describes_no_action(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether a function's docstring says what something is: that of `__init__` and of a property."""
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list}
    return function.name == "__init__" or bool(decorators & {"property", "cached_property", "setter"})


@pytest.mark.parametrize("name", TREES)
def test_docstrings_of_functions_begin_with_a_verb(name: str) -> None:
    functions = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    wrong = [
        (node.lineno, node.name, docstring.splitlines()[0])
        for node in functions
        if (docstring := ast.get_docstring(node))
        and not describes_no_action(node)
        and not begins_with_a_verb(docstring)
    ]
    assert wrong == []


def test_every_text_file_is_ascii() -> None:
    folders = [ROOT / name for name in (*LAYERS, "configs", "docs", "tests", "requirements", ".ci")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in TEXT_SUFFIXES]
    files += [path for path in ROOT.iterdir() if path.suffix in TEXT_SUFFIXES or path.name == "Makefile"]
    assert [str(path.relative_to(ROOT)) for path in files if not path.read_bytes().isascii()] == []
