"""Episodes: a task, an environment and an engine make a trajectory."""
