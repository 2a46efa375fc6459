"""What one check of an environment found."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Finding:
    """What one check found: how many cases it tried, and those that went against it."""

    name: str
    tried: int = 0
    against: list[str] = field(default_factory=list)

    def add(self, holds: bool, case: str) -> None:
        """Count a case."""
        self.tried += 1
        if not holds:
            self.against.append(case)
