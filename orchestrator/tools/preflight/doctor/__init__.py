"""Checks of a machine and a configuration before a run: a line for each, with a remedy (`checks.py` lists them)."""
