"""Tools of text that environments share."""
