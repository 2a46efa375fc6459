"""Evaluation: held-out tasks put to the engines, and what the answers are worth; in a stage of its own, or between steps."""
