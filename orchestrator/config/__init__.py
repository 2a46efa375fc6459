"""Settings of a run, settings that several stages share, and configurations as text."""
