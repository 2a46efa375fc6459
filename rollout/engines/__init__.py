"""Inference engines behind one protocol. The home of vLLM."""
