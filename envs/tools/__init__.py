"""Text tools that environments share."""
