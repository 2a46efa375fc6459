"""The files and the screen of a run: folder, checkpoints, metrics, event log and progress."""
