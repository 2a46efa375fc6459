"""Functions as a user would write them: rewards and tools."""

import asyncio
import time
from typing import Any


def length(answer: str, row: dict[str, Any]) -> float:
    """Reward short answers: minus the characters beyond the length of the row's answer."""
    return -float(max(0, len(answer) - len(str(row["answer"]))))


async def parts(answer: str, row: dict[str, Any]) -> dict[str, float]:
    await asyncio.sleep(0)
    return {"right": float(answer == row["answer"]), "short": 0.5}


def over_a_batch(completions: list[str], **columns: Any) -> list[float]:
    return [1.0 for _ in completions]


def broken(answer: str, row: dict[str, Any]) -> float:
    return float(row["no such field"])


def nothing(answer: str, row: dict[str, Any]) -> None:
    return None


def empty(answer: str, row: dict[str, Any]) -> dict[str, float]:
    return {}


def exiting(answer: str, row: dict[str, Any]) -> float:
    raise SystemExit(1)


def emptying(answer: str, row: dict[str, Any]) -> dict[str, float]:
    row["tests"].pop()
    return {"length": 2.0, "left": len(row["tests"])}


def population(city: str, year: int = 2020) -> int:
    """Return the inhabitants of a city.

    Args:
        city: Its name.
        year: The year of the count.
    """
    if city != "Oslo":
        raise ValueError(f"no city {city}")
    return 700_000 + year


async def capitals(countries: list[str]) -> dict[str, str]:
    """Return the capital of each country.

    Args:
        countries: Names of countries.
    """
    await asyncio.sleep(0)
    return dict.fromkeys(countries, "Oslo")


def slow(seconds: float) -> str:
    """Sleep.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "awake"


def faulty() -> str:
    """Fail."""
    raise KeyError("the service is down")


def untyped(city):
    """Return nothing."""
