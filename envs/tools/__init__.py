"""Tools of text that several environments lend."""
