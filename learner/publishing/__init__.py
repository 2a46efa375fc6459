"""The sending side of a weight push."""
