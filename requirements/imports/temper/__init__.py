"""The checkout as the package `temper`, on machines where no link gives a job's copy of it that name."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[3])]
