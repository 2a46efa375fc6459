"""One run in progress: what its stages share, and the processes that they train and sample with."""
