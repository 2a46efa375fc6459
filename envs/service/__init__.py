"""Base of service environments: records that an agent changes by tools for one customer, and their scoring (tau-bench)."""
