"""MLflow: runs, tables, traces and registry, and its pages."""
