"""Checks of a machine and a configuration before a run: one line each, with a remedy."""
