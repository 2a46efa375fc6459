"""The commands that look at a run: what it does, what it has left, where its metrics bend."""
