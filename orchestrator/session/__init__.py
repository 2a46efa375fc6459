"""One run in progress: the context of its stages, its engines, trainer and supervision."""
