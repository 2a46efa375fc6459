"""The processes of a run under watch: a hung one is looked at and ended, and the state of all is written for people."""
