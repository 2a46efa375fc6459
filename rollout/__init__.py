"""Rollout: turns a task into scored token trajectories."""
