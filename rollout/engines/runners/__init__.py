"""What is added to each of the two model runners of vLLM, and which of them an engine has."""
