"""What a run leaves and shows: its folder, metrics, tracker and progress."""
