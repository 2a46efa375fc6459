"""Rollout: turns a task into scored token trajectories.

From the bottom up; each module imports only modules above it in this list:

    sampling      how tokens are sampled
    codec         dataclasses as JSON data and back, for checkpoints, recorded batches and sampled answers
    expert_choices, token_arrays     token data as arrays
    trajectory    the results of a rollout, written by `trajectory_json`. `stored_turns` keeps turns out of the driver
    tokenizer     loads the tokenizer, with the `declared_turns` of a run; `escaping` keeps text from forging turns
    formats       the reasoning, tool calls and turn ends of a model family
    budget        the thinking budget: the rule, and its request arguments
    weights       weight sync: its formats, its delivery, and the receiving side; no vLLM
    engines       inference engines behind one protocol; the home of vLLM
    config        settings of workers and episodes
    episodes      a task, an environment and an engine make a trajectory; the rollout worker
    remote        episodes with a model behind a server, over chat messages
    pool          all rollout workers: replaces dead ones, keeps their weights equal
    serving       a model behind an OpenAI-compatible server
    vllm_backend  makes vLLM's parts of a rollout worker
"""
