"""What a run leaves and shows: its folder, metrics, ledger and progress."""
