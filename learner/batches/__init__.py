"""From groups of trajectories to the arrays of micro-batches. No torch in this package."""
