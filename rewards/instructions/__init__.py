"""Verifiable instructions: whether a response follows them, checked exactly. Pure; linear in the response."""
