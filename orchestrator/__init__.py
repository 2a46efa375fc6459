"""Orchestrator: wires everything. Read `orchestrator/loop/loop.py` first.

From the bottom up; each folder imports itself and those above it in this list (a contract in `pyproject.toml` holds that):

    loop          the training loop, its buffer and its waits; watches that end a stage which learns nothing
    run           the files and the screen of a run: folder, checkpoints, metrics, event log, progress
    tracking      metrics and files to MLflow and other places
    config        the settings of a run, and those that several stages share
    cluster       the home of Ray
    session       one run in progress: engines, trainer, recorded batches, supervision of all processes
    data          rows for the supervised stages
    evaluation    held-out tasks put to the engines, and the scores of the answers
    stages        the stages: a file and an entry of `registry` for each
    pipeline      the configuration composed of their settings; the plan, the checks and the runner of a run
    tools         programs that look at runs: nothing above imports one
    cli           the commands of `temper`
"""
