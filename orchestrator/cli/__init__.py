"""The commands of `temper`."""
