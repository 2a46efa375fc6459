"""Thinking limits and a push in vLLM's second model runner without a GPU.

Run it by `PYTHONPATH=tests python tests/support/second_runner.py MODEL`.

Triton's interpreter (`TRITON_INTERPRET=1`) runs its kernels. vLLM's CPU build takes it for a compiler if it is registered as
one. It is very slow, but the Python, the order of calls and the numbers are the same.
"""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # in vLLM's own process too, which imports this module

from triton.backends import Backend, backends


class Interpreter:
    """The part of a compiler's driver that vLLM needs."""

    @staticmethod
    def is_active() -> bool:
        """Return True: it needs no device."""
        return True


backends["cpu"] = Backend(compiler=None, driver=Interpreter)

from unit.rollout.engines.test_thinking import CONFIG, story

if __name__ == "__main__":
    config = replace(CONFIG, runner="v2")
    asyncio.run(story(Path(sys.argv[1]), config, forced=12))
