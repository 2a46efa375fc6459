"""Models: loading, scoring of tokens, shared prompts, experts."""
