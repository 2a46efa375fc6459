"""The wanted packages, their lock files, and the scripts that make, check and install these."""
