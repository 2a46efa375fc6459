"""Learner: turns groups of trajectories into new weights.

From the bottom up. Each module imports only itself and the modules above it in this list:

    config        settings of optimiser and learner
    losses        losses and advantages as pure functions, and their settings
    batches       from groups to the arrays of micro-batches; numpy only
    token_records per-token results of a step
    models        loading, log-probabilities of tokens, shared prompts, experts
    engine        the model under training; the home of DeepSpeed
    training_state, saving      training state of a checkpoint; how it is copied and written
    weight_sender a rank's part of a weight push, in a segment or in buckets
    update        one update of a model
    gc_freeze     excludes imported objects from garbage collection
    worker        one rank of the trainer, a plain class; `trainer_group` is all ranks as one
"""
