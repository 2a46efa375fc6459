"""What every environment shares: tasks, thinking modes, the text of a turn, rows of data, typed faults."""
