"""Change points of a run's metrics, and the groups that caused the update at a change point.

`change_points` searches one series, `update_shares` ranks the groups, and `explanation` joins both for a stage.
"""
