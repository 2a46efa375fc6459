"""A shop with a database, sixteen tools and one user (tau-bench, retail)."""
