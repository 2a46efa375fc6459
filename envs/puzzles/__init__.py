"""The generators and scores of reasoning-gym."""
