"""The loop and TRL at the same work, in turns."""
