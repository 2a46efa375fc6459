"""One question, one final answer, compared exactly."""
