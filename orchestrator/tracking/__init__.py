"""Reports of a run to tracking servers, and the pages that show them."""
