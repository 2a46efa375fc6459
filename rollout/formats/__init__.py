"""The format of a model family: reasoning, tool calls and turn ends, detected from its chat template."""
