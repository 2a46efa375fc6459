"""Estimates of the memory and the seconds of a run, for profiles and plans."""
