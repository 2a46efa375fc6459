"""Ports that are chosen here and used later, in another process."""

import socket
from pathlib import Path

from temper.orchestrator.cluster.this_machine import LOOPBACK, free_ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_free_and_all_different_and_none_is_given_to_somebody_elses_connection() -> None:
    lowest = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < lowest
    for port in ports:
        socket.create_server((LOOPBACK, port)).close()
