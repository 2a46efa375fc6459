"""Environments of gymnasium, played in text."""
