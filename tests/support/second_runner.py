"""Limits of thoughts and a push in vLLM's second model runner without a GPU.

Run it by `PYTHONPATH=tests python tests/support/second_runner.py MODEL`.

Its kernels are run by Triton's interpreter (`TRITON_INTERPRET=1`), which vLLM's CPU build takes for a compiler where it is
registered as one. That is as slow as can be, and the same Python, the same order of calls and the same numbers.
"""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # in vLLM's own process too, which imports this module

from triton.backends import Backend, backends


class Interpreter:
    """What vLLM asks of the driver of a compiler."""

    @staticmethod
    def is_active() -> bool:
        """Return True: it needs no device."""
        return True


backends["cpu"] = Backend(compiler=None, driver=Interpreter)

from unit.rollout.engines.test_thinking import CONFIG, story

if __name__ == "__main__":
    config = replace(CONFIG, runner="v2")
    asyncio.run(story(Path(sys.argv[1]), config, forced=12))
