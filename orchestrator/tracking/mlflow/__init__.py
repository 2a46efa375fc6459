"""MLflow: its runs, tables, traces and registry, and the pages on which they are seen."""
