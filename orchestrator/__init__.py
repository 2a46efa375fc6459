"""Orchestrator: wires everything. Read `orchestrator/loop.py` first."""
