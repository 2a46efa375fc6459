"""Losses and advantages as pure functions, and their settings."""
