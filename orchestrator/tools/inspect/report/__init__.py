"""Reports and comparisons of runs, made from their files."""
