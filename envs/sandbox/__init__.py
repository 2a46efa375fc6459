"""Sandboxed processes for model-written programs. They know no environment."""
