"""The rollout workers, seen as one, whoever of them lives."""
