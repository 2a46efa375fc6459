"""How weights are handed over from the learner to the engines. No vLLM, no Ray in here."""
