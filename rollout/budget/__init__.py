"""The limit of a thought: what it is, where it acts, and how a request carries it."""
