"""What a run has left, read back for people: figures, reports, comparisons."""
