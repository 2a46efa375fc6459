"""The base of every environment: tasks, thinking modes, the text of a turn, rows of data, typed faults."""
