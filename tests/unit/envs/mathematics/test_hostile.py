"""Hostile answers: bounded in time, never right, never our fault, and harmless to other checks."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.bound import made

from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import OFF

LIMIT_S = 2.0


def boxed(answer: str) -> str:
    return f"So it is \\boxed{{{answer}}}."


def matrix(rows: int, columns: int, entry: str = "x") -> str:
    body = "\\\\".join("&".join([entry] * columns) for _ in range(rows))
    return f"\\begin{{pmatrix}}{body}\\end{{pmatrix}}"


HOSTILE = {
    "tower": boxed("9^{9^{9^{9}}}"),
    "tower of stars": boxed("9**9**9**9"),
    "tower of brackets": boxed("((9^9)^9)^9"),
    "factorial": boxed("1000000!"),
    "factorial of a factorial": boxed("((9!)!)!"),
    "binomial": boxed("\\binom{1000000}{500000}"),
    "sum": boxed("\\sum_{k=1}^{1000000} \\frac{1}{k^2}"),
    "product": boxed("\\prod_{k=1}^{99999} k"),
    "integral": boxed("\\int_0^1 e^{x^{x^x}} dx"),
    "100 kB": "a" * 100_000,
    "100 kB in a box": boxed("a" * 100_000),
    "100 kB of digits": boxed("9" * 100_000),
    "100 kB of boxes": "\\boxed{x}" * 11_000,
    "boxes that differ": "".join(f"\\boxed{{{n}}}" for n in range(9_000)),
    "boxes left open": "\\boxed{" * 14_000,
    "boxes in boxes": "\\boxed{" * 10_000 + "}" * 10_000,
    "braces": "\\boxed{" + "{" * 100_000 + "}" * 100_001,
    "brackets": boxed("(" * 19 + "x" + ")" * 19 + "^{60}"),
    "marks": "".join(f"#### {n} " for n in range(14_000)),
    "spaces": boxed("5" + " " * 500 + "x"),
    "null bytes": boxed("x\x00+1"),
    "surrogates": boxed("\ud800x"),
    "combining marks": boxed("x" + "\u0300\u0316" * 250),
    "expanding characters": "\ufdfa" * 100_000,
    "huge exponent": boxed("10^{999999999}"),
    "huge exponent of a number": boxed("1e999999999"),
    "nested fractions": boxed("\\frac{1}{1+" * 18 + "x" + "}" * 18),
    "nested roots": boxed("\\sqrt{" * 19 + "x" + "}" * 19),
    "power of a matrix": boxed(matrix(5, 5) + "^{60}"),
    "large matrix": boxed(matrix(6, 40)),
    "polynomials": boxed("(1+x)^{64}(1+y)^{64}(1+z)^{64}"),
    "polynomial quotient": boxed("\\frac{(x+1)^{64}-(x-1)^{64}}{(x^{2}+1)^{64}+\\sqrt{x+\\sqrt{x+\\sqrt{x}}}}"),
    "equation": boxed("x^{64}+x^{63}+y^{60}=x^{17}\\sin(x)"),
    "sines": boxed("+".join(f"\\sin^{{60}}({name}x)" for name in "abcdef")),
    "nested functions": boxed("\\log_{2}" * 40 + "x"),
    "union": boxed("\\cup".join(["(1,x)"] * 50)),
    "inequalities": boxed("<".join("xyzabc" * 20)),
    "nested indices": boxed("x_{x_{x_{x}}}"),
    "code": boxed("__import__('os').system('sleep 9')"),
}
HONEST = [("x^2-1", "(x-1)(x+1)"), ("18", "18"), ("(1,2)", "(1, 2)"), ("2\\sqrt{3}", "\\sqrt{12}"), ("x+1", "1+x")]


def play(text: str, reference: str) -> tuple[float, str, float]:
    """Return (reward, outcome, seconds) of one answer."""
    message = {"role": "user", "content": "What is it?"}
    task = Task(env=EnvRef(name="math"), key="row", messages=(message,), spec={"answer": reference}, thinking=OFF)
    env = made("math")
    env.reset(options={"task": task})
    start = time.monotonic()
    _, reward, _, _, info = env.step(text)
    return float(reward), info["outcome"], time.monotonic() - start


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    assert play(boxed("1+x"), "x+1")[0] == 1.0


@pytest.mark.parametrize(
    "reference",
    ["18", "x+1", pytest.param("y=x^2+1", marks=pytest.mark.slow), pytest.param("(1,2)", marks=pytest.mark.slow)],
)
def test_hostile_answers_are_wrong_within_two_seconds(reference: str) -> None:
    for name, text in HOSTILE.items():
        reward, outcome, seconds = play(text, reference)
        assert reward == 0.0, name
        assert outcome in ("wrong", "policy_fault"), name
        assert seconds < LIMIT_S, name


def test_honest_answers_beside_hostile_ones_are_right() -> None:
    honest = [(boxed(answer), reference) for reference, answer in HONEST * 8]
    hostile = [(text, "x+1") for text in HOSTILE.values()]
    jobs = [job for pair in zip(hostile, honest, strict=False) for job in pair]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda job: play(*job), jobs))
    assert [reward for reward, _, _ in results] == [0.0, 1.0] * (len(jobs) // 2)
