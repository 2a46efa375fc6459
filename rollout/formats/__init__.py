"""How a model's family writes thoughts and tool calls, and what ends its turns; found out by its chat template."""
