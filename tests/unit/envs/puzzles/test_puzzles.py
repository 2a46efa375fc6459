"""reasoning-gym: every generator with its reference answer, hostile answers, options."""

import ast
import importlib.util
import time
from pathlib import Path

import pytest
from support.bound import generated
from support.refusals import failure_kind

from temper.envs.binding import bind
from temper.envs.catalog import configure_env
from temper.envs.config import EnvConfig
from temper.envs.core.definition import USUAL_CHANCE
from temper.envs.core.errors import FailureKind
from temper.envs.core.task import Task
from temper.envs.puzzles.env import CHANCE, FEW_ANSWERS, LEFT_OUT, answer_of
from temper.envs.puzzles.library import SCORE_S, Origin, PuzzleLibrary, shared_library
from temper.envs.source import open_source
from temper.envs.transcript import TranscriptScore, score_turns
from temper.rewards.score import Outcome

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason="reasoning-gym is not installed (its pycosat needs a C compiler)",
)
START_S = 40.0
"""Longest restart of the library on a busy machine."""
WITHOUT_ANSWERS = {"boxnet", "rush_hour"}
EVALUATE = {
    "binary_matrix": ("algorithmic", "eval"),
    "spiral_matrix": ("algorithmic", "eval"),
    "string_insertion": ("algorithmic", "eval"),
    "n_queens": ("games", "eval"),
    "countdown": ("games", "parse_expr"),
    "puzzle24": ("games", "parse_expr"),
    "intermediate_integration": ("algebra", "parse_expr"),
    "polynomial_multiplication": ("algebra", "parse_expr"),
    "simple_integration": ("algebra", "parse_expr"),
}
"""Data sets whose scorers evaluate the answer, with the function that they call."""


def task_of(dataset: str, *, seed: int = 0) -> Task:
    return generated("reasoning_gym", {"dataset": dataset}, seed=seed)


def answered(task: Task, answer: str) -> TranscriptScore:
    return score_turns(task, [f"<answer>{answer}</answer>"])


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_generators_repeat_and_only_their_reference_scores_1(every: int) -> None:
    reference_of = configure_env("reasoning_gym", {})
    assert reference_of.reference is not None
    names = list(shared_library("making").datasets())
    assert len(names) >= 100
    wrong: dict[str, object] = {}
    for name in names[::every]:
        task = task_of(name)
        assert task == task_of(name)
        if task.spec["answer"] is None:
            wrong[name] = "no answer"
        else:
            reference = score_turns(
                task, reference_of.reference(task)
            )  # in another process: the question is made again there
            if (reference.score.outcome, reference.score.parts.get("correct")) != (Outcome.OK, 1.0):
                wrong[name] = reference
        assert reference_of.negatives is not None
        for what, turns in reference_of.negatives(task):
            bad = score_turns(task, turns)
            if bad.failure is not None or not bad.score.parts["correct"] < 1.0:
                wrong[f"{name}, {what}"] = bad
    assert wrong == dict.fromkeys(WITHOUT_ANSWERS & set(names[::every]), "no answer")


def test_all_scorers_that_evaluate_answers_are_known() -> None:
    evaluators = {"eval", "exec", "compile", "parse_expr", "sympify", "S", "literal_eval", "run", "__import__"}
    spec = importlib.util.find_spec("reasoning_gym")
    assert spec is not None
    assert spec.origin is not None
    found = {}
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        scorers = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef) and node.name == "score_answer"
        ]
        calls = [call for scorer in scorers for call in ast.walk(scorer) if isinstance(call, ast.Call)]
        names = {
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "") for call in calls
        }
        if evaluated := names & evaluators:
            found[path.stem] = (path.parent.name, evaluated)
    known = {name: (folder, {function}) for name, (folder, function) in EVALUATE.items()}
    assert found == known | {"number_sorting": ("algorithmic", {"eval"})}  # that one evaluates its own answer


@pytest.mark.parametrize("dataset", EVALUATE)
def test_an_answer_is_never_executed(dataset: str) -> None:
    task = task_of(dataset, seed=3)
    patch = "__import__('sys').modules['__main__'].score.__globals__.update(CONDITIONS={}, score=lambda *a: 1.0)"
    forge = "__import__('os').write(1, b'{\"score\": 1.0}\\n')"
    for answer in (patch, f"[{patch}]", forge, f"[{forge}, '']", "print(1)", "x.__class__", "(1).__class__.__mro__"):
        assert answered(task, answer).score.parts["correct"] < 1.0, answer
    assert answered(task, "no answer").score.parts["correct"] < 1.0
    assert answered(task, task.spec["answer"]).score.parts["correct"] == 1.0


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("countdown", "9**9**9"),
        ("simple_integration", "(" * 900 + ")" * 900),
        pytest.param("simple_integration", "x**(9**9**9)", marks=pytest.mark.slow),
        ("binary_matrix", "[" * 9_000),
        ("boxnet", "[" * 9_000),
        ("prime_factorization", "no number"),
        ("decimal_arithmetic", "1e999999999"),
        ("complex_arithmetic", "nan"),
        ("complex_arithmetic", "nan+nani"),
        ("game_of_life_halting", "any text"),
        ("puzzle24", "1*3*5+9"),
        ("leg_counting", "9" * 19_000),
        ("leg_counting", "9" * 90_000),
        ("sentence_reordering", "\ud800\x00"),
    ],
)
def test_a_hostile_answer_is_wrong_in_bounded_time(dataset: str, answer: str) -> None:
    task = task_of(dataset, seed=1)
    score_turns(task, ["<answer>warm</answer>"])
    start = time.monotonic()
    judged = answered(task, answer)
    assert time.monotonic() - start < SCORE_S + START_S
    assert judged.failure is None
    assert judged.score.outcome in (Outcome.WRONG, Outcome.POLICY_FAULT)
    assert judged.score.parts["correct"] < 1.0
    if task.spec["answer"] is not None:
        assert answered(task, task.spec["answer"]).score.outcome == Outcome.OK


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so <answer>\n12 </answer>.", ("12", True)),
        ("\\boxed{7} and <answer>12</answer>", ("12", True)),
        ("it is \\boxed{7}", ("7", True)),
        (" 7\n", ("7", False)),
        ("<answer>7</answer><answer>8</answer>", ("", True)),
        ("\\boxed{7} \\boxed{7}", ("7", True)),
        ("<answer></answer>", ("", True)),
        ("", ("", False)),
    ],
)
def test_the_answer_is_what_is_marked_and_only_one(text: str, expected: tuple[str, bool]) -> None:
    assert answer_of(text) == expected


def test_an_integral_that_restates_the_question_is_wrong() -> None:
    task = task_of("intermediate_integration", seed=12)
    assert "-x*sin(3*x)" in task.messages[0]["content"]
    assert task.spec["answer"] is None
    assert answered(task, "-Integral(x*sin(3*x), x) + C").score.parts["correct"] == 0.0
    assert answered(task, "x*cos(3*x)/3 - sin(3*x)/9 + C").score.parts["correct"] == 1.0


def test_a_part_of_the_library_s_score_is_not_paid() -> None:
    task = task_of("spiral_matrix")
    judged = answered(task, str(task.spec["answer"].split()))
    assert (judged.score.outcome, judged.reward, judged.score.parts["score"]) == (Outcome.WRONG, 0.0, 0.1)


SWEPT = ("coin_flip", "course_schedule", "polynomial_equations", "time_intervals", "word_sorting")


@pytest.mark.parametrize("names", [SWEPT, pytest.param((), marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_one_answer_to_every_task_earns_no_more_than_chance(names: tuple[str, ...]) -> None:
    everything = sorted(shared_library("making").datasets())
    swept = names or [name for name in everything if name not in (*LEFT_OUT, *LONG_TO_MAKE)]
    best = {name: best_constant(name) for name in swept}
    assert {
        name: found for name, found in best.items() if found[0] > (CHANCE if name in FEW_ANSWERS else USUAL_CHANCE)
    } == {}


LONG_TO_MAKE = ("futoshiki",)
"""Data sets with tasks that take minutes to make."""


def best_constant(name: str) -> tuple[float, str]:
    """Return the highest mean reward of one answer to 20 tasks, a fixed one or another seed's, and the answer."""
    tasks = [task_of(name, seed=seed) for seed in range(20)]
    others = [task_of(name, seed=seed).spec["answer"] for seed in range(20, 30)]
    answers = dict.fromkeys((*CONSTANTS, *(answer for answer in others if answer is not None)))
    return max((sum(answered(task, answer).reward or 0.0 for task in tasks) / len(tasks), answer) for answer in answers)


CONSTANTS = ("0", "1", "2", "-1", "0.5", "True", "False", "Yes", "No", "no", "A", "None", "[]", "{}", "x", "no answer")


@pytest.mark.parametrize(
    ("dataset", "form"),
    [
        ("advanced_geometry", "{}, x"),
        ("fraction_simplification", "{}/7"),
        ("gsm_symbolic", "{} 747 20 5"),
        ("gsm_symbolic", "-{}"),
        ("kakurasu", "{} x"),
        ("knights_knaves", "{} knave"),
        ("letter_jumble", "{} x y"),
        ("polynomial_equations", "{}, x"),
        ("quantum_lock", "{} x"),
        ("sokoban", "x{}x"),
        ("spell_backward", "{}x"),
        ("survo", "x {}"),
        ("time_intervals", "9{}"),
        ("word_sorting", "{}, x, y"),
    ],
)
def test_a_right_answer_among_others_is_wrong(dataset: str, form: str) -> None:
    paid = {}
    for seed in range(5):
        task = task_of(dataset, seed=seed)
        assert answered(task, task.spec["answer"]).reward == 1.0
        answer = form.format(task.spec["answer"])
        if answered(task, answer).reward != 0.0:
            paid[seed] = answer
    assert paid == {}


@pytest.mark.parametrize(
    ("dataset", "answer"), [("coin_flip", "50%"), ("coin_flip", "1/0"), ("polynomial_equations", "x = 2")]
)
def test_an_unreadable_answer_is_wrong_and_no_fault(dataset: str, answer: str) -> None:
    judged = answered(task_of(dataset, seed=1), answer).score
    assert (judged.outcome, judged.parts["correct"]) == (Outcome.WRONG, 0.0)


def test_the_configuration_of_a_data_set_sets_its_difficulty() -> None:
    config = EnvConfig(
        kind="reasoning_gym", options={"dataset": "chain_sum", "config": {"min_terms": 9, "max_terms": 9}}
    )
    task = open_source(bind("sums", config), split="train", seed=0).task(0)
    assert task.env.name == "sums"
    assert sum(sign in "+-" for sign in task.messages[0]["content"]) >= 8
    impossible = EnvConfig(kind="reasoning_gym", options={"dataset": "chain_sum", "config": {"min_terms": -1}})
    with pytest.raises(ValueError, match="can't make .*chain_sum"):
        open_source(bind("sums", impossible), split="train", seed=0)


def test_a_task_of_another_library_version_is_a_fault() -> None:
    task = task_of("leg_counting")
    task.messages[0]["content"] = "another question"
    judged = answered(task, task.spec["answer"])
    assert judged.reward is None
    assert failure_kind(judged) is FailureKind.GRADER


def test_a_process_that_was_lost_is_started_again() -> None:
    library, origin = PuzzleLibrary(), Origin(dataset="leg_counting", config={}, seed=5)
    before = library.make(origin)
    library.process.close()
    assert library.make(origin) == before
    assert library.score(origin, str(before.answer)) == 1.0
    library.process.close()
