"""The trajectory viewer: the answers of a step or an evaluation with their tokens, served on loopback or as one HTML file.

`recorded_file` reads what a run has left, `table` and `piece` make columns of it, `token_bytes` says what an id is as text,
`archive` packs one file's columns, `page` puts them into HTML, `server` serves them by `loopback`. The folder `browser` has
the page itself: HTML, style, and its code, a noun a file; docs/viewing.md says what it shows and what a run records.
"""
