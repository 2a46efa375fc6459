"""Episodes with models behind OpenAI-compatible servers, over chat messages."""
