"""Questions with one answer, one kind of question per file."""
