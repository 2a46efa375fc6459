"""Task sets of the library verifiers, in its own Python environment."""
