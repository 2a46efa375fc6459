"""Questions that one answer settles: a kind of question in a file."""
