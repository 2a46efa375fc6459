"""Evaluation: answers to held-out tasks and their scores, in a stage or between steps."""
