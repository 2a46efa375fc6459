"""Whether what a run has left agrees: ledger, metrics, checkpoints and trajectories, read from its folder alone."""
