"""What a run leaves and shows: its folder, metrics, event log and progress."""
