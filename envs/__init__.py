"""Environments: tasks, tools, verifiers, the sandbox. They know no tokens, no torch, no Ray.

From the bottom up; each room imports itself and those above it in this list, and no family imports another:

    core          what every environment shares: tasks, thinking modes, the text of a turn, rows, typed faults
    data          rows of files, folders and the hub; which of them are held out
    presets       standard sets for evaluation, declared
    sandbox       sealed processes for model-written programs
    tools         tools of text that environments share
    task_env      the base class of all below
    service       records that an agent changes by tools for one customer: what shops and airlines share
    mathematics, coding, tool_use, retail, airline, puzzles, games, questions, remote      the families
    multi_turn_calls       calls over several turns of a user, on the leaderboard's own simulators: above tool_use
    catalog       the environments by id
    binding       an environment under the name and with the settings that a run gives to it
    source        where a run's tasks come from: generated, or rows of data
    all_tasks     the tasks of the commands that need no run
    registration  the environments by gymnasium's ids
    env_episode   one episode of one environment
    transcript    scores given turns
"""
