"""The model under training. The home of DeepSpeed."""
