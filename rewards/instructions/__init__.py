"""Verifiable instructions: exact checks whether a response follows them. Pure; linear in the response."""
