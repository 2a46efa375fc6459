"""Learner: turns groups of trajectories into new weights.

From the bottom up; each room imports itself and those above it in this list:

    config        what the learner can be told
    losses        losses and advantages as pure functions, and their settings
    batches       from groups to the arrays of micro-batches; numpy only
    token_records what a step made of the tokens of each answer
    models        models: loading, log-probabilities of tokens, shared prompts, experts
    engine        the model under training; the home of DeepSpeed
    training_state, saving      what a checkpoint has beside the model; how it is copied and written
    weight_sender a rank's part in a weight push, in a segment or in buckets
    update        one update of a model
    gc_freeze     what a process has imported is no garbage
    worker        one rank of the trainer, a plain class; `trainer_group` is all of them as one
"""
