"""The generators and scorers of reasoning-gym."""
