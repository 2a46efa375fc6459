"""Environments: tasks, tools, verifiers and the sandbox. They know no tokens, no torch and no Ray.

A package imports itself and the packages above it in this list. Families do not import each other:

    core          tasks, thinking modes, the text of a turn, rows, typed faults
    data          rows of files, folders and the hub, and the held-out split
    presets       benchmark settings
    sandbox       sandboxed processes for model-written programs
    tools         text tools that environments share
    task_env      the base class of all environments
    mathematics, coding, tool_use, puzzles, games, questions, remote      the families
    multi_turn_calls       calls over several user turns on the leaderboard's simulators, above tool_use
    workspace     files and programs with hidden tests, above coding
    retail        a shop and its customer, above remote
    catalog       the environments by id
    config        settings of an environment of a run
    binding       an environment with the name and settings of a run
    source        the tasks of a run: generated, or rows of data
    all_tasks     the tasks of commands without a run
    registration  the environments by gymnasium id
    env_episode   one episode of one environment
    transcript    scores given turns
"""
