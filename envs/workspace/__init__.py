"""A small Python project with a fault: the model reads, writes and runs its files, and hidden tests judge them."""
