"""What became of a run: where its metrics bend, in which order, where the update came from, which known collapse that is.

`bends` finds the places in one series, `courses` makes the series of a stage, `update_shares` says from which groups an update
came, `evidence` and `signatures` hold the courses against known collapses, `explanation` puts it together and `sentences` says
it. docs/explaining.md says how to read it.
"""
