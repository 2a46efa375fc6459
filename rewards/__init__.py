"""Rewards: pure functions over text, numbers, test reports and group statistics. No I/O."""
