"""The commands about environments: those that test, grade and write them, and the standard sets."""
