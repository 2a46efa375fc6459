"""Programs tested in the sandbox."""
