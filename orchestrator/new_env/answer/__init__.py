"""The environment my_env, which Temper finds by this package's name; what it is stands in env.py."""

from orchestrator.new_env.answer.env import ENVIRONMENT

__all__ = ["ENVIRONMENT"]
