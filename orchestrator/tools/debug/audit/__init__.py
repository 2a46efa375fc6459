"""Whether what a run has left agrees: event log, metrics, checkpoints and trajectories, read from its folder alone."""
