"""Benchmarks, as ratios measured in one process."""
