"""What a row of the table of faults holds, and the threads of other projects that it names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A thread of another project."""

    name: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault."""

    name: str
    fault: str
    promised: str
    threads: tuple[Thread, ...] = ()
    held_by: str | None = None
    seen: str = ""


REPOSITORIES = {
    "NeMo-RL": "NVIDIA-NeMo/RL",
    "SkyRL": "NovaSky-AI/SkyRL",
    "prime-rl": "PrimeIntellect-ai/prime-rl",
    "verl": "verl-project/verl",
    "OpenRLHF": "OpenRLHF/OpenRLHF",
    "TRL": "huggingface/trl",
    "open-instruct": "allenai/open-instruct",
    "SvS": "MasterVito/SvS",
    "rllm": "rllm-org/rllm",
}


def thread(name: str) -> Thread:
    """Return the thread of a name such as `SkyRL #1350` or `TRL PR #5911`."""
    project, *kind, number = name.split()
    place = "pull" if kind else "issues"
    return Thread(name=name, url=f"https://github.com/{REPOSITORIES[project]}/{place}/{number.removeprefix('#')}")


def threads(*names: str) -> tuple[Thread, ...]:
    return tuple(thread(name) for name in names)
