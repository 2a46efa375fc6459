"""Attacks on the sandbox, run against it, and its speed."""
