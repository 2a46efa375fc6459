"""The description of a run: what people wrote stays above a line, what the run says of itself is made anew below it."""

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""
LINE = "<!-- below this line the run describes itself -->"
PAGE = "RUN_PAGE"
"""Stands in a note for the address of the run's own page, which it does not know."""
FILE = "RUN_FILE/"
"""Stands before the name of a file of the run, as the source of a picture."""


def merged_note(there: str, note: str, *, page: str, file: str) -> str:
    """Return the description with a note in the place of the one before, and what people wrote above it kept.

    `page` is the address of the run's page, `file` what comes before the name of a file in the address of that.
    """
    theirs, line, _ = there.partition(LINE)
    above = theirs.strip() if line else there.strip()
    return (f"{above}\n\n" if above else "") + f"{LINE}\n\n{note.replace(PAGE, page).replace(FILE, file)}"
