"""The trajectory viewer: recorded answers with their tokens, served on loopback or as one HTML file.

`recorded_file` reads a run's files, `table` builds columns, `token_bytes` decodes ids, `archive` compresses the columns of a
file, `page` renders the HTML, and `server` serves it. The folder `browser` has HTML, style and code.
"""
