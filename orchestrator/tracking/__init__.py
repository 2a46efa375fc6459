"""What a run reports to a tracking server, and the pages on which people see it."""
