"""Extensions of vLLM's two model runners, and the choice between them."""
