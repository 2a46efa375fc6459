"""Environments: tasks, tools, verifiers, the sandbox. They know no tokens, no torch, no Ray.

Where to start: `catalog` lists the environments, `episode` is what they share, `script` plays given turns through one.

    environment, task, source, rows, formats      what an environment is, its tasks, where these come from
    setting, options, thinking                    kinds of settings, options of an environment, modes of thinking
    play, step_result, failure, clock             an episode from outside: what comes back is checked, faults, its clock
    dialogue, episode, *_tool(s), calculator      turns of the model, one episode, tools lent to any environment
    arithmetic, math_*                            mathematics
    programs, program_rows, *_rows, code_*        code: generated tasks, rows of data, tests and checks
    lookups, tool_*, function_rows                tool use: look-ups in several turns, function calls in one
    retail_*                                      a shop with 16 tools
    reasoning_*, gym_env, game*, http_*           families: puzzles, games, remote servers
    sandbox*, zygote, program, main_program, literals    programs in sealed processes
    line_process, seal_probe                      processes that grade, and whether they are sealed
"""
