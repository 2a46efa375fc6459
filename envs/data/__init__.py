"""Rows of data: files, folders and data sets of the hub, each row with the place where it stands."""
