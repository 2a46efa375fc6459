"""Orchestrator: wires everything. Read `orchestrator/loop/loop.py` first.

From the bottom up; each room imports itself and those above it in this list:

    deadline, step_times, mixture, ticket_ledger, slots, buffer_state, buffer, loop_sides, loop
                                                     the training loop and what it stands on
    shaping, failure_watch, skip_watch, band_watch   rewards of a whole group; when failures and alarms end a stage
    run           what a run leaves and shows: its folder, metrics, ledger, progress
    tracking      what a run reports to MLflow, by threads of its own, the pages on which that is seen, and further places
    audit         whether what a run has left agrees: ledger, metrics, checkpoints, trajectories
    data          data for the supervised stages
    settings      what can be told: the settings of a run, and those that several stages or rooms share
    recording     the batch of a step in a file, by which it can be trained again
    cluster       the home of Ray
    supervision   the processes under watch: hung ones are looked at and ended, the state of all written for people
    reporting     what a run has left, read back for people
    session       one run in progress: what its stages share, the processes that they train and sample with
    evaluation    held-out tasks put to the engines, and what the answers are worth
    stages        the stages: one file and one line in `registry` for each
    profiles      the settings that depend on hardware and model, chosen where they are not given
    pipeline      the configuration composed of their settings; the plan, the checks and the runner of a run
    reference     the settings told to people and editors: one explained, all on a page, two files beside each other
    grading       grading without a model
    new_env       an environment of one's own, written to begin with
    viewing       the answers of a run in a browser, token by token
    watching      what a run does now, for the terminal
    explaining    where the metrics of a run bend, and from which groups the update came
    replaying     a recorded step trained again: what differs from the record, or with another setting
    planning      what a run would take: memory, time and cost by part, the limits that it would meet
    simulation    a run at any scale in virtual time: the real loop, buffer and pool, durations planned or measured
    doctor        what may be wrong with a machine and a configuration, looked for before a run
    parity        engine and trainer on the same tokens: the gap, by layer type
    cli           the commands of `temper`
"""
