"""Seconds of a step: what there is to do, how fast it is done, what that makes."""
