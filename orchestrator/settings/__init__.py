"""What can be told: the settings of a run, those that several stages or rooms share, and configurations as text."""
