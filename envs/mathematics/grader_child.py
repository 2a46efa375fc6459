"""The computer algebra of the math environment: a mother process that forks killable workers.

Run it as `python -I grader_child.py` with the control socket as standard input. The mother imports and warms math-verify,
writes `{"warm": bool}`, and forks a worker for each descriptor that it receives. It never sees an answer. A worker writes
`{"pid": int, "seal": {...}}` on its descriptor, then reads lines `{"reference": LaTeX, "answer": LaTeX}`. It answers each
by two lines: `{"reference": bool}` (whether it could read the reference answer) and `{"equal": bool, "worn": bool}`.
Replace a worn worker (a check was slow or took much memory). The client kills a worker at its deadline, and the kernel does
if the client is gone.

Workers can read only their libraries, and can't open sockets, fork or execute (`temper.envs.sandbox.seal`). Each verifies
this (`envs.sandbox.seal_probe`). A root mother becomes `nobody` if its libraries stay readable.
"""

import json
import logging
import os
import resource
import signal
import socket
import sys
import time
import types
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Add, preorder_traversal

temper = sys.modules["temper"] = types.ModuleType(
    "temper"
)  # this file runs by its path in a process without an import path
temper.__path__ = [os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))]
from temper.envs.sandbox import namespaces, seal, seal_probe  # noqa: E402

CPU_S = 10.0
MEMORY_BYTES = 2 * 2**30
WORN_KIB, WORN_S = 512 * 2**10, 0.3
MAX_REQUEST_BYTES = 64 * 2**10
LATEX = (LatexExtractionConfig(),)
DECIMALS = 12
WARM_UP = (
    ("\\frac{1}{2}", "0.5"),
    ("x+\\sqrt{4}", "2+x"),
    ("x^2-1", "(x-1)(x+1)"),
    ("(-\\infty,1)\\cup[2,\\infty)", "[2,\\infty)\\cup(-\\infty,1)"),
    ("\\{1,2\\}", "\\{2,1\\}"),
    ("(1,2,3)", "(1,2,3)"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}"),
    ("y=2x+1", "2x+1=y"),
    ("1<x<2", "(1,2)"),
    ("(1,2)", "1<x<2"),
    ("3x+2y=6", "6x+4y=12"),
    ("x>3", "3<x"),
    ("2,-2", "\\pm 2"),
    ("\\log_2 8+\\sin x+e^{2}", "3+e^2+\\sin(x)"),
    ("2\\sqrt{3}\\pi", "\\sqrt{12}\\pi"),
    ("\\text{yes}", "\\text{yes}"),
)


def parse_latex(text: str) -> list[Any]:
    """Return the expressions that math-verify reads in a LaTeX text, empty if it can't."""
    return list(parse(f"\\boxed{{{text}}}", extraction_config=LATEX, parsing_timeout=None, fallback_mode="no_fallback"))


def is_equal(references: list[Any], answer: str) -> bool:
    """Return whether an answer equals the parsed reference. An unevaluated sum of numbers equals nothing."""
    answers = parse_latex(answer)
    if (
        not references
        or not answers
        or (any(map(has_unadded_sum, answers)) and not any(map(has_unadded_sum, references)))
    ):
        return False
    return bool(
        verify(references, answers, float_rounding=DECIMALS, timeout_seconds=None, allow_set_relation_comp=True)
    )


def has_unadded_sum(expression: Any) -> bool:
    """Return whether an expression has a sum with two or more rational numbers, as in `x+1+0`."""
    return any(
        isinstance(node, Add) and sum(bool(term.doit().is_Rational) for term in terms(node)) > 1
        for node in preorder_traversal(expression)
    )


def terms(node: Any) -> list[Any]:
    return [term for part in node.args for term in (terms(part) if isinstance(part, Add) else [part])]


def serve(channel: int) -> None:
    seal.seal_library_user(memory_bytes=MEMORY_BYTES)
    send_line(channel, {"pid": os.getpid(), "seal": seal_probe.probe_seal(memory_bytes=MEMORY_BYTES)})
    while line := read_line(channel):
        request, start = json.loads(line), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        references = parse_latex(request["reference"])
        send_line(channel, {"reference": bool(references)})
        try:
            same = is_equal(references, request["answer"])
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            NotImplementedError,
            RecursionError,
            TypeError,
            ValueError,
        ):
            same = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        worn = time.process_time() - start > WORN_S or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > WORN_KIB
        send_line(channel, {"equal": same, "worn": worn})


def send_line(channel: int, reply: dict[str, Any]) -> None:
    os.write(channel, json.dumps(reply).encode() + b"\n")


def read_line(channel: int) -> bytes:
    """Return the next request, or empty if the channel is closed. At most one request is pending."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(channel, MAX_REQUEST_BYTES)):
        line += part
    return line


def main() -> None:
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    os.dup2(1, 0)
    namespaces.leave_root(seal.library_folders())
    warm = {is_equal(parse_latex(reference), answer) for reference, answer in WARM_UP} == {True}
    control.send(json.dumps({"warm": warm}).encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not message:
            return
        forked = os.fork()
        if forked == 0:
            control.close()
            serve(descriptors[0])
            os._exit(0)
        os.close(descriptors[0])


if __name__ == "__main__":
    main()
