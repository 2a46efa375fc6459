"""What a run would take before it is run: memory, seconds, tokens and cost, and the limits that it would meet."""
