"""The packages of `temper`: the checkout is the package, and `pyproject.toml` declares all else."""

from setuptools import find_packages, setup

FOLDERS = ("rewards", "envs", "rollout", "learner", "orchestrator")

setup(
    script_name="setup.py",  # by this name setuptools leaves the file out of the wheel
    packages=["temper", *(f"temper.{name}" for name in find_packages(include=[f"{each}*" for each in FOLDERS]))],
)
