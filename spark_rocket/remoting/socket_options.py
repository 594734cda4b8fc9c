"""Options of TCP sockets: small frames leave at once, and a caller's system ends the connections of a lost peer.

===============================  ======================================================================================
nothing to send                  keepalive probes after ``IDLE_S``; lost after ``PROBES`` of them without an answer
sent, but not acknowledged       lost after ``UNACKNOWLEDGED_S`` (Linux), instead of a quarter of an hour
===============================  ======================================================================================

This finds a peer whose host, network or address is gone. A proxy or tunnel in between acknowledges for the peer: what
it drops is found by requests without responses (``RemotingConnection``).

Stateless. Java's clients set TCP_NODELAY only.
"""

from __future__ import annotations

import socket

IDLE_S = 30
PROBE_INTERVAL_S = 10
PROBES = 3
UNACKNOWLEDGED_S = 20

# Systems have different subsets; macOS calls the idle time TCP_KEEPALIVE.
_KEEPALIVE_OPTIONS = (
    ("TCP_KEEPIDLE", IDLE_S),
    ("TCP_KEEPALIVE", IDLE_S),
    ("TCP_KEEPINTVL", PROBE_INTERVAL_S),
    ("TCP_KEEPCNT", PROBES),
    ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_S * 1000),
)


def set_no_delay(sock: socket.socket | None) -> bool:
    """Send small frames at once; False if it is not a TCP socket.

    Both kinds of event loops do this by default today; the explicit call avoids any risk of delayed ACKs (40 ms).
    Buffer sizes are left to the kernel: setting one disables its auto-tuning, up to several MiB.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return True


def set_caller_options(sock: socket.socket | None) -> None:
    """Set the options of a connection that this process has opened."""
    if sock is None or not set_no_delay(sock):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS:
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
