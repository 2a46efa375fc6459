"""Environments behind HTTP servers."""
