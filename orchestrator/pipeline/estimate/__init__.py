"""Estimates of the memory of a run's processes, for profiles and plans."""
