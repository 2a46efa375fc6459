"""Programs that are judged by tests in the sandbox."""
