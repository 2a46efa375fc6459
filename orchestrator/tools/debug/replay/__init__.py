"""Replay: train a recorded step again from the checkpoint before it, offline, and compare."""
