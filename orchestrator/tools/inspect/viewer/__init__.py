"""The trajectory viewer: the answers of a step or an evaluation with their tokens, served on loopback or as one HTML file.

`recorded_file` reads the files of a run, `table` makes columns of them, `token_bytes` gives the text of ids, `archive` packs
the columns of one file, `page` puts them into HTML, `server` serves them by `loopback`. The folder `browser` has the page
itself: HTML, style, and its code, a noun a file; docs/viewing.md describes it.
"""
