"""Train-inference parity: the logprob diff between engine and trainer, by layer type and by setting."""
