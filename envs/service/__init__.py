"""What services share: records that an agent changes by tools for one customer, and what it is judged by (tau-bench)."""
