"""Standard sets for evaluation, each declared: where its rows lie, how they are put and judged, and who published that."""
