"""Environments on servers."""
