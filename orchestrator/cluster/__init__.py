"""The home of Ray: actors, placement, delivery of weights, jobs."""
