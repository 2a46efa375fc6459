"""What is installed: the packages that are wanted, the locks, and the scripts that make, check and install them."""
