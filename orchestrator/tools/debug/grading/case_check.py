"""One check of an environment, and the cases that it tried."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class CaseCheck:
    """The cases that one check tried, and the cases that went against it."""

    name: str
    tried: int = 0
    against: list[str] = field(default_factory=list)

    def add(self, holds: bool, case: str) -> None:
        """Count a case."""
        self.tried += 1
        if not holds:
            self.against.append(case)
