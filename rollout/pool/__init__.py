"""The pool of rollout workers."""
