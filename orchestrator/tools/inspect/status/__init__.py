"""The state of a run: `facts` gathers it, `terminal` draws it for `temper status`."""
