"""Temper: post-training of reasoning language models across many environments at once."""
