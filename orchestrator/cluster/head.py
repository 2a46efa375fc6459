"""The head of the cluster in RAY_ADDRESS. Imports no Ray, so that a command checks it first."""

import os
import socket

HEAD_S = 3.0
"""Timeout for an answer of a cluster's head."""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The beginning of an HTTP/2 connection: the preface and empty settings. A gRPC server, such as Ray's head, answers with its
own."""


def require_head(address: str) -> None:
    """Raise `ValueError` for a RAY_ADDRESS of another form, and `ConnectionError` if no head answers at it.

    Ray itself would wait for minutes and name no variable. It finds the head of "auto" at once, or reports that there is none.
    """
    host, _, port = address.rpartition(":")
    if address in ("local", "auto"):
        return
    if not host or "/" in host or not port.isdecimal():
        raise ValueError(f"RAY_ADDRESS={address!r}: must be HOST:PORT of a Ray head, such as 10.0.0.1:6379, or unset")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=HEAD_S) as head:
            if os.environ.get("RAY_USE_TLS", "0") == "0":  # with TLS, only Ray can read the answer
                head.settimeout(HEAD_S)
                head.sendall(HELLO)
                if head.recv(len(HELLO))[3:4] != b"\4":
                    raise OSError("another service listens there")
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConnectionError(
            f"RAY_ADDRESS={address}: no answer of a Ray head ({reason}); run ray start --head on that machine, or unset "
            f"RAY_ADDRESS to use this machine"
        ) from error
