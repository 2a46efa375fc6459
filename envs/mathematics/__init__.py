"""One question with one final answer, compared exactly."""
