"""Orchestrator: wires everything. Read `orchestrator/loop.py` first.

From the bottom up; each room imports itself and those above it in this list:

    deadline, mixture, buffer, loop    the training loop and what it stands on; shaping of rewards, watches over failures
    run           what a run leaves and shows: its folder, metrics, tracker, progress
    data          data for the supervised stages
    settings      the configuration: composed, checked, compared with what a run began with
    cluster       the home of Ray
    reporting     what a run has left, read back for people
    stages        the stages, and the pipeline that runs them
    grading       grading without a model
    bench         benchmarks
    cli           the commands of `python -m orchestrator`
"""
