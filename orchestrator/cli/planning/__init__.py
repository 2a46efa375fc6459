"""The commands that say what a run would take and do, before it is run."""
