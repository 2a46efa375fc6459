"""The pipeline of a run: its configuration, composed of the settings of the stages, its plan, its checks, its runner."""
