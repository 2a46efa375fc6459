"""The settings of a judge."""

from dataclasses import dataclass

from temper.envs.core.bounds import positive
from temper.envs.core.setting import free, immutable


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """The judge of an environment's answers."""

    url: str = free("")
    """Base of an OpenAI-compatible server with the version, such as http://127.0.0.1:8000/v1."""
    model: str = immutable("")
    """Name of the model on this server."""
    rubric: str = immutable("The answer is right, complete and clear.")
    """The properties of a good answer, in words."""
    reference: str | None = immutable(None)
    """Field of the row that the judge sees as the expected answer. Null shows none."""
    compare: bool = immutable(False)
    """Whether it compares the answers of a group with each other instead of scoring each. In an evaluation with one answer for
    each task the part `judge` is 0.5.
    """
    best: int = immutable(10)
    """The highest score. The part `judge` is the score divided by it. Comparisons give the share of wins."""
    max_tokens: int = immutable(512, unit="tokens")
    """Most tokens of the judge's reply."""
    hosts: list[str] = free([])
    """Hosts besides this machine to which questions and answers may be sent."""
    key_variable: str = free("")
    """Environment variable on every worker with the server's key. Empty sends none."""
    timeout_s: float = free(60.0, unit="seconds")
    """Deadline of one request, in seconds. It does not count for the episode's."""
    retries: int = free(3)
    """Retries after an error of the connection or of the server."""

    def __post_init__(self) -> None:
        if not self.url or not self.model:
            raise ValueError("judge needs url and model")
        positive("judge.best", self.best)
        positive("judge.max_tokens", self.max_tokens)
