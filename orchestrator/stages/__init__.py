"""The stages of a run and the pipeline that runs them."""
