"""The batch of a step in a file: all that training took of it, and what it made of each token."""
