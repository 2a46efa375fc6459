"""Dialogues of several user turns whose calls change simulated services."""
