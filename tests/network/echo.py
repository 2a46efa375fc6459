"""Round trips of small packets: `echo.py serve ADDRESS` returns them, `echo.py ask ADDRESS` prints their times in seconds."""

import json
import socket
import sys
import time

PORT, PACKETS, GAP_S, WAIT_S = 9000, 400, 0.005, 1.0


def serve(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind((address, PORT))
        while True:
            text, asker = here.recvfrom(64)
            here.sendto(text, asker)


def ask(address: str) -> list[float]:
    """Return the times of the round trips that came back within `WAIT_S` of the last packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.settimeout(GAP_S)
        sent: list[float] = []
        took: list[float] = []
        while len(sent) < PACKETS or time.monotonic() < sent[-1] + WAIT_S:
            if len(sent) < PACKETS:
                sent.append(time.monotonic())
                here.sendto(str(len(sent) - 1).encode(), (address, PORT))
            try:
                while True:
                    number = int(here.recv(64))
                    took.append(time.monotonic() - sent[number])
            except TimeoutError:
                continue
        return took


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(json.dumps(ask(sys.argv[2])))
