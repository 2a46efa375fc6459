"""Dialogues of several turns whose calls change simulated services."""
