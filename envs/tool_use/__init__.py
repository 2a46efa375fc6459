"""Look-ups and function calls."""
