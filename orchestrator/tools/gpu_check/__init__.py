"""The GPU check: what a machine with a GPU must do right, and how fast it does it, part by part.

`python -m temper.orchestrator.tools.gpu_check` runs every part in a process of its own and writes `docs/gpu.md`.
"""
