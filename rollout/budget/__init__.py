"""Thinking budgets: the rule, its implementation on tensors, and the request arguments."""
