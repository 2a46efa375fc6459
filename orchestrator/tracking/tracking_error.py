"""Errors of trackers."""

REJECTED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "MALFORMED_REQUEST")
"""MLflow's answers to a request with an entry that it will never accept."""
REFUSED = (
    *REJECTED,
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "CUSTOMER_UNAUTHORIZED",
    "ENDPOINT_NOT_FOUND",
    "NOT_IMPLEMENTED",
    "FEATURE_DISABLED",
)
"""MLflow's answers to a request that it will never accept."""


class RunDeletedError(RuntimeError):
    """Somebody deleted the run in MLflow."""


def is_refusal(error: Exception) -> bool:
    """Return whether another try would change nothing."""
    return getattr(error, "error_code", None) in REFUSED


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
