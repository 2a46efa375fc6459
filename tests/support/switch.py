"""An Ethernet switch in user space that delays and loses frames: `switch.py DELAY_S LOSS SEED PORT...`.

Linux has netem for this, but not all kernels are built with it. The switch reads commands from standard input: a line with
groups of port numbers, as `0 1|2`, separates the groups. `all` joins the ports. The switch ends with its input.
"""

import heapq
import itertools
import os
import random
import select
import socket
import sys
import time
from collections.abc import Sequence

ALL_PROTOCOLS = 0x0003
SOL_PACKET, IGNORE_OUTGOING, FORCED_RECEIVE_BUFFER = 263, 23, 33
"""Options of Linux that Python has no names for."""
FRAME, ROOM, BURST = 65536, 64 * 2**20, 256


def open_port(name: str) -> socket.socket:
    """Return a socket with the frames that arrive at an interface."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    port.setsockopt(socket.SOL_SOCKET, FORCED_RECEIVE_BUFFER, ROOM)
    port.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    port.bind((name, 0))
    port.setblocking(False)
    return port


class Switch:
    """Forwards frames by their destination, after `delay_s`, except a share `loss` of them."""

    def __init__(self, names: Sequence[str], *, delay_s: float, loss: float, seed: int) -> None:
        self.ports = [open_port(name) for name in names]
        self.groups = [0] * len(names)
        self.delay_s, self.loss, self.random = delay_s, loss, random.Random(seed)
        self.port_by_address: dict[bytes, int] = {}
        self.waiting: list[tuple[float, int, int, bytes]] = []
        self.order = itertools.count()

    def command(self, line: str) -> None:
        groups = ["" if line == "all" else part for part in line.split("|")]
        group_by_port = {int(port): number for number, part in enumerate(groups) for port in part.split()}
        self.groups = [group_by_port.get(port, 0) for port in range(len(self.ports))]

    def enqueue(self, number: int, frame: bytes) -> None:
        """Queue a frame of a port. A frame to an unknown address goes to all other ports."""
        to, source = frame[:6], frame[6:12]
        self.port_by_address[source] = number
        if self.random.random() < self.loss:
            return
        for port in (self.port_by_address[to],) if to in self.port_by_address else range(len(self.ports)):
            if port != number and self.groups[port] == self.groups[number]:
                heapq.heappush(self.waiting, (time.monotonic() + self.delay_s, next(self.order), port, frame))

    def deliver(self) -> float | None:
        """Send the frames that are due. Return the seconds until the next one, None without one."""
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, _, port, frame = heapq.heappop(self.waiting)
            try:
                self.ports[port].send(frame)
            except OSError:  # the interface is full or gone, as in a real network
                continue
        return max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else None

    def serve(self) -> None:
        numbers = {port.fileno(): number for number, port in enumerate(self.ports)}
        poll = select.poll()
        for source in (0, *numbers):
            poll.register(source, select.POLLIN)
        next_s: float | None = None
        while True:
            for source, _ in poll.poll(None if next_s is None else 1000 * next_s):
                if source == 0:
                    if not (given := os.read(0, FRAME)):
                        return
                    self.command(given.decode().strip().splitlines()[-1])
                else:
                    self._take_all(numbers[source])
            next_s = self.deliver()

    def _take_all(self, number: int) -> None:
        for _ in range(BURST):
            try:
                self.enqueue(number, self.ports[number].recv(FRAME))
            except OSError:
                return


if __name__ == "__main__":
    delay_s, loss, seed, *names = sys.argv[1:]
    Switch(names, delay_s=float(delay_s), loss=float(loss), seed=int(seed)).serve()
