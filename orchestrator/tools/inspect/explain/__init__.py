"""Where a run's metrics bend, and from which groups the update came there.

`change_points` finds the places in one series, `update_shares` finds the groups, and `explanation` joins both for a stage.
"""
