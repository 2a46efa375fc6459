"""The command `doctor --plan`: the plan of a run as a page or as JSON."""
