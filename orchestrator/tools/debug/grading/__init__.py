"""Grading without a model: recorded responses, and environments that test themselves."""
