"""A shop that an agent serves: a database, sixteen tools and one customer (tau-bench, Yao et al., 2024, retail)."""
