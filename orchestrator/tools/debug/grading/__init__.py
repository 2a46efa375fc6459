"""Grading without a model: given answers, and environments that test themselves."""
