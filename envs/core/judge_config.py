"""The settings of a judge."""

from dataclasses import MISSING, dataclass, fields

from temper.envs.core.bounds import require_positive
from temper.envs.core.setting import free, immutable

CLASSIFIER_SETTINGS = ("classifier", "scale", "device")
SERVER_SETTINGS = ("hosts", "key_variable")
SHARED_SETTINGS = ("timeout_s",)
ADDRESSES, RUN_KEY = "TEMPER_JUDGES", "TEMPER_JUDGE_KEY"
"""Environment variables of workers: addresses of the judges that the run serves, by model as JSON, and their key."""


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """The judge of an environment's answers: a `model` on a server or served by the run, or a `classifier`."""

    url: str = free("")
    """Base of an OpenAI-compatible server with the version, such as http://127.0.0.1:8000/v1. Empty: the run serves `model`."""
    model: str = immutable("")
    """Name of the model on this server. Without `url`, a model as in `model.path`, which the run serves on one more GPU."""
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
    """Deadline of one request, or of one chat of a classifier, in seconds. It does not count for the episode's."""
    retries: int = free(3)
    """Retries after an error of the connection or of the server."""
    classifier: str = immutable("")
    """A sequence classifier with one output, safetensors and a chat template, by folder or hub name, instead of a server. The
    part `judge` is the sigmoid of its logit.
    """
    scale: float = immutable(1.0)
    """The logit is divided by it before the sigmoid."""
    device: str = immutable("cpu")
    """Torch device, such as cuda:1. Float32 on cpu, the checkpoint's dtype elsewhere."""

    def __post_init__(self) -> None:
        if not self.classifier and not self.model:
            raise ValueError("judge needs model, or url and model of a server, or classifier")
        defaults = {one.name: [] if one.default is MISSING else one.default for one in fields(self)}
        changed = {name for name, default in defaults.items() if getattr(self, name) != default}
        own = changed & set(CLASSIFIER_SETTINGS)
        unused = changed - own - set(SHARED_SETTINGS) if self.classifier else own
        if self.is_served_by_run:
            unused |= changed & set(SERVER_SETTINGS)
        if unused:
            form = next(f"{name}={value}" for name in ("classifier", "url", "model") if (value := getattr(self, name)))
            raise ValueError(f"judge.{form} does not use {', '.join(sorted(unused))}; remove them, or {form}")
        require_positive("judge.best", self.best)
        require_positive("judge.max_tokens", self.max_tokens)
        require_positive("judge.scale", self.scale)
        require_positive("judge.timeout_s", self.timeout_s)

    @property
    def is_served_by_run(self) -> bool:
        return not (self.url or self.classifier)
