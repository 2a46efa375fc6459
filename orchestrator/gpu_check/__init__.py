"""The GPU check: what a machine with a GPU must do right, and how fast it does it, part by part.

`python -m orchestrator.gpu_check` runs every part in a process of its own and writes `docs/gpu.md`.
"""
