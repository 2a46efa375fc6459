"""Gymnasium environments as text games."""
