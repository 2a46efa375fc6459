"""Profiles: settings that depend on the hardware and the size of the model, resolved unless the user sets them."""
