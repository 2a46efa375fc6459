"""An environment of one's own, written to begin with: four small ones that work, to be copied under a new name."""
