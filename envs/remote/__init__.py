"""Environments on HTTP servers."""
