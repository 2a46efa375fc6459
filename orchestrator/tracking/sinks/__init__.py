"""Second places for what a run reports, beside MLflow: each in a process of its own."""
