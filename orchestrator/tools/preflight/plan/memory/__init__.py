"""Memory of ranks, engines and machines, and of what travels between them."""
