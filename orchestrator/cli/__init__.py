"""The commands of `python -m orchestrator`."""
