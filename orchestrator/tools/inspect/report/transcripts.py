"""Readable trajectories for the report: a few correct and wrong ones per environment, from the newest files."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.rewards.score import correctness
from temper.rollout.trajectory import Stop

STOPS = {
    Stop.ENV.value: "finished",
    Stop.TURNS.value: "turn limit",
    Stop.LENGTH.value: "token limit",
    Stop.EPISODE_LENGTH.value: "token limit",
    Stop.PROMPT_TOO_LONG.value: "prompt too long",
    Stop.FAILURE.value: "error",
}
"""Why an episode ended, as in the viewer."""
PER_ENV = 4
LONGEST_TEXT = 4000
NEWEST_FILES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A passage of a conversation. `role` is `reasoning`, `answer`, or a chat role."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A trajectory as readable text."""

    env: str
    key: str
    source: str
    """The file it is from, without its ending."""
    reward: float | None
    parts: dict[str, float]
    stop: str
    failure: str | None
    detail: str
    """The verifier's line for people."""
    tokens: int
    forced: int
    versions: tuple[int, int] | None
    """Oldest and newest weight version that sampled it."""
    passages: tuple[Passage, ...]

    @property
    def ended(self) -> str:
        """Why it ended, for people."""
        return STOPS.get(self.stop, self.stop)

    @property
    def outcome(self) -> str:
        """The group it belongs to when transcripts are picked."""
        if self.reward is None:
            return "failed"
        correct = correctness(self.parts, self.reward)
        return f"{'right' if correct >= 1 else 'partly' if correct > 0 else 'wrong'} after {self.stop}"


def pick_transcripts(folder: Path, *, per_env: int = PER_ENV) -> dict[str, list[Transcript]]:
    """Pick up to `per_env` trajectories per environment from the newest files, with as many kinds of result as possible."""
    files = sorted(folder.glob("*.jsonl"), key=lambda path: (path.stat().st_mtime, path.name), reverse=True)
    by_env: dict[str, dict[str, list[Transcript]]] = {}
    for file in files[:NEWEST_FILES]:
        for transcript in _transcripts(file):
            kinds = by_env.setdefault(transcript.env, {})
            of_kind = kinds.setdefault(transcript.outcome, [])
            if len(of_kind) < per_env:
                of_kind.append(transcript)
    return {env: _in_turn(kinds, per_env) for env, kinds in sorted(by_env.items())}


def _in_turn(kinds: dict[str, list[Transcript]], count: int) -> list[Transcript]:
    """Take one of each kind, then a second of each, up to `count`. Correct ones come first."""
    order = sorted(kinds, key=lambda kind: (not kind.startswith("right"), kind))
    deepest = max(len(of_kind) for of_kind in kinds.values())
    turns = [kinds[kind][depth] for depth in range(deepest) for kind in order if depth < len(kinds[kind])]
    return sorted(turns[:count], key=lambda transcript: order.index(transcript.outcome))


def _transcripts(file: Path) -> Iterator[Transcript]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                return  # a killed process left this line half written
            yield to_transcript(json.loads(line), source=file.stem)


def to_transcript(row: dict[str, Any], *, source: str) -> Transcript:
    """Return a row of `trajectories/` (see `temper.rollout.trajectory_json`) as people read it."""
    passages = [Passage(role=m["role"], text=_text(m.get("content"))) for m in row["messages"]]
    versions = [version for turn in row["turns"] for version in turn["versions"]]
    for turn in row["turns"]:
        passages.append(Passage(role="reasoning", text=_text(turn["reasoning"])))
        passages.append(Passage(role="answer", text=_text(turn["answer"])))
        passages += [Passage(role=m["role"], text=_text(m.get("content"))) for m in turn["observation"]]
    for forced in row.get("forced_answers", ()):
        role = f"answer at budget {forced['thinking']['budget']}, reward {forced['reward']}"
        passages += [Passage(role=role, text=_text(turn["answer"])) for turn in forced["turns"]]
    failure = row["failure"]
    return Transcript(
        env=row["env"],
        key=row["key"],
        source=source,
        reward=row["reward"],
        parts=row["parts"],
        stop=row["stop"],
        failure=None if failure is None else f"{failure['kind']}: {failure['message']}",
        detail=row.get("detail", ""),
        tokens=sum(len(turn["sampled_ids"]) for turn in row["turns"]),
        forced=sum(sum(turn["injected"]) for turn in row["turns"]),
        versions=(min(versions), max(versions)) if versions else None,
        passages=tuple(passage for passage in passages if passage.text),
    )


def _text(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content) if content is not None else ""
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + f" ... ({len(text)} characters)"
