"""The answers of an evaluation behind a server, kept as they come: one that was interrupted goes on where it was.

{"asked": {"url": ..., "model": ..., "samples": ..., "envs.math.thinking": ..., ...}}      what they are answers to
{"content": "5f0c...", "ticket": 7, "trajectories": [...], ...}                            a group, `group_to_json`
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temper.envs.source import content_key
from temper.orchestrator.run.row_file import append_line, parsed_lines
from temper.rollout.trajectory import Group, Ticket
from temper.rollout.trajectory_json import group_from_json, group_to_json


class KeptAnswers:
    """A file of answered groups, which is removed once their result is written."""

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        """Read what is there already. Raise `ValueError` where that was asked otherwise than `asked` says, or can't be read."""
        self._path = path
        rows = parsed_lines(path.read_text(encoding="utf-8"), path, json.loads) if path.exists() else []
        if rows:
            os.truncate(path, sum(len(line.encode()) + 1 for line, _ in rows))  # without a line that was torn
            self._require_same(rows[0][1]["asked"], asked)
        else:
            path.unlink(missing_ok=True)
            append_line(path, json.dumps({"asked": asked}))
        self._groups = {row["ticket"]: row for _, row in rows[1:]}

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, ticket: Ticket) -> Group | None:
        """Return the answers to a ticket's task that are there; None where that is to be asked."""
        row = self._groups.get(ticket.number)
        if row is None or row["content"] != content_key(ticket.task):
            return None
        return group_from_json(row, ticket.task)

    def keep(self, group: Group) -> None:
        """Keep a group of which no answer has failed: the others are asked again."""
        if not group.failed:
            append_line(self._path, json.dumps({"content": content_key(group.ticket.task)} | group_to_json(group)))

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink()

    def _require_same(self, before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        other = [f"{name} {before.get(name)} (now {asked[name]})" for name in asked if before.get(name) != asked[name]]
        if other:
            raise ValueError(
                f"{self._path} has answers to another evaluation, of {', '.join(other)}; choose another --name, or remove it"
            )
