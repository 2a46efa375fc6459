"""What goes wrong with a tracker, for those that send to it and those that wait for them."""

REFUSED = (
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_STATE",
    "MALFORMED_REQUEST",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "CUSTOMER_UNAUTHORIZED",
    "ENDPOINT_NOT_FOUND",
    "NOT_IMPLEMENTED",
    "FEATURE_DISABLED",
)
"""MLflow's answers of a server that is there and will not do what it is asked to."""


class RunDeletedError(RuntimeError):
    """Somebody deleted the run in MLflow."""


def is_refusal(error: Exception) -> bool:
    """Return whether a server that is there refused something, so that another try would change nothing."""
    return getattr(error, "error_code", None) in REFUSED


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
