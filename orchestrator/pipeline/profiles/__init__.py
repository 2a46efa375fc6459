"""Profiles: the settings that depend on the hardware and on the size of the model, chosen where nobody gives them."""
