"""What can be told: the settings of a run, those of stages that several files need, and configurations as text."""
