"""Rollout: turns a task into scored token trajectories.

From the bottom up; each room imports itself and those above it in this list:

    sampling      how a token is drawn
    expert_choices, token_arrays     what there is of tokens, as arrays
    trajectory    what a rollout leaves; `trajectory_json` writes it
    tokenizer     loading one; `escaping` keeps texts from forging turns
    formats       how a model's family writes thoughts and tool calls, and ends its turns
    budget        the limit of a thought: the rule, and how a request carries it
    weights       the receiving side of a weight push, and what both sides agree on; no vLLM
    engines       inference engines behind one protocol; the home of vLLM
    episodes      a task, an environment and an engine make a trajectory; the rollout worker
    remote        episodes with a model behind a server, over chat messages
    pool          the rollout workers, seen as one: dead ones are replaced, all serve the same weights
    serving       a model behind an OpenAI-compatible server
"""
