"""Rows of data from files, folders and hub data sets, each with its place."""
