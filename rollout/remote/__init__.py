"""Models behind OpenAI-compatible servers: episodes over chat messages in place of ids."""
