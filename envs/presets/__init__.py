"""Benchmarks as declarations: location of the rows, prompt, scoring and publication."""
