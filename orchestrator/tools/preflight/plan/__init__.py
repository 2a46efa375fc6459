"""The resources of a run before it starts: memory, seconds, tokens and cost, and the limits that it would exceed."""
