"""The receiving side of a weight push, and what both sides agree on. No vLLM in here."""
