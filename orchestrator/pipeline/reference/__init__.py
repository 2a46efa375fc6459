"""The settings told to people and to editors: one explained, all on a page, a schema, two configurations beside each other."""
