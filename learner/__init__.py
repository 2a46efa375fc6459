"""Learner: turns groups of trajectories into new weights."""
