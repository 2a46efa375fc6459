"""The configuration of a run: composed, checked, compared with what a run began with."""
