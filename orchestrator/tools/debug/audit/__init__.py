"""Consistency of a run's files: event log, metrics, checkpoints and trajectories."""
