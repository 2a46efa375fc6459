"""Environments: tasks, messages, tools and the sandbox. They know no tokens, no torch, no Ray."""
