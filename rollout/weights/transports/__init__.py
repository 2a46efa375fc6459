"""The ways in which the bytes of a weight push travel, one a file; `catalog.py` lists them."""
