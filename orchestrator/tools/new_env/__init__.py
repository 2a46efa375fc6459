"""`temper env new`: four small working environments to copy and rename."""
