"""An airline with a database, fourteen tools and one customer (tau-bench, airline)."""
