"""The reference of settings: one explained, a page of all, an editor schema, and differences of configurations."""
