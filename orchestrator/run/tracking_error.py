"""What goes wrong with a tracker, for those that send to it and those that wait for them."""


class RunDeletedError(RuntimeError):
    """Somebody deleted the run in MLflow."""


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
