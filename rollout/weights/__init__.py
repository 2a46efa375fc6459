"""Weight sync from the learner to the engines. Imports neither vLLM nor Ray."""
