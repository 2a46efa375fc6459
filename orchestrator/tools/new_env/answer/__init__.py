"""The environment my_env, which Temper finds by this package's name; what it is stands in env.py."""

from temper.orchestrator.tools.new_env.answer.env import ENVIRONMENT

__all__ = ["ENVIRONMENT"]
