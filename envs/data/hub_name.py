"""What a name on the hub looks like, told without its library."""

import re

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""Owner and name."""
