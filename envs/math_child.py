"""The computer algebra of the math environment, in a process of its own that may be killed at any time.

Run as `python -I math_child.py`: takes lines `{"gold": LaTeX, "answer": LaTeX}` on standard input and answers each by
`{"equal": bool}`; the first line that it writes is `{"ready": ...}`. An alarm ends a check that nobody waits for.
It reads nothing but its libraries, and can't open sockets, fork or execute (`envs.sandbox_seal`).
"""

import json
import logging
import os
import signal
import sys

from math_verify import LatexExtractionConfig, parse, verify

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
from envs import sandbox_seal  # noqa: E402

sys.path.remove(ROOT)

ALARM_S = 10
MEMORY_BYTES = 2 * 2**30
LATEX = (LatexExtractionConfig(),)


def equal(gold: str, answer: str) -> bool:
    """Whether two LaTeX expressions are mathematically equal (math-verify, gold first)."""
    sides = [
        parse(f"\\boxed{{{text}}}", extraction_config=LATEX, parsing_timeout=None, fallback_mode="no_fallback")
        for text in (gold, answer)
    ]
    return all(sides) and bool(verify(sides[0], sides[1], timeout_seconds=None))


def main() -> None:
    """Serves until standard input ends."""
    logging.disable(logging.CRITICAL)
    out, sys.stdout = sys.stdout, sys.stderr
    warm = equal("\\frac{1}{2}", "0.5") and equal("x+\\sqrt{4}", "2+x")
    layers = sandbox_seal.seal_library_user(memory_bytes=MEMORY_BYTES)
    print(json.dumps({"ready": layers, "warm": warm}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(ALARM_S)
        try:
            same = equal(request["gold"], request["answer"])
        except Exception:
            same = False
        signal.alarm(0)
        print(json.dumps({"equal": same}), file=out, flush=True)


if __name__ == "__main__":
    main()
