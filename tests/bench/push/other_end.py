"""The other end of a push: a process of its own, as an engine has one."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

from temper.rollout.weights.manifest import WeightManifest

ANSWER_S = 60.0
"""How long it may take to take a push, in seconds; the first one with the start of the process."""
END_S = 10.0
"""How long the process may take to end by itself, in seconds."""


class OtherEnd:
    """A process that takes one push after the other."""

    def __init__(self, take: Callable[[Connection], None], *, answer_s: float = ANSWER_S) -> None:
        """`take` is what the process does: until its end of the pipe has no more, it answers each push with the seconds that
        it took.
        """
        context = multiprocessing.get_context("spawn")
        self._answer_s = answer_s
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=take, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # open in that process alone, so that it closes with it

    def give(self, manifest: WeightManifest, offer: object) -> None:
        """Let it take a push."""
        self._pipe.send((manifest, offer))

    def taken(self) -> float:
        """Wait until it took the push; returns the seconds that it says.

        Raises `RuntimeError` where its process has ended, `TimeoutError` where it does not answer.
        """
        try:
            if not self._pipe.poll(self._answer_s):
                raise TimeoutError(f"the process that takes pushes has not answered for {self._answer_s:g} s")
            seconds: float = self._pipe.recv()
        except EOFError:
            self._process.join(END_S)
            status = self._process.exitcode
            raise RuntimeError(f"the process that takes pushes ended with status {status}") from None
        return seconds

    def close(self) -> None:
        """End the process, by force where it does not end by itself."""
        self._pipe.close()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_S)
