"""Weight pushes by size of model and by transport."""
