"""Replaying: a recorded step trained again from the checkpoint before it, offline, and what differs."""
