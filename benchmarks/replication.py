"""A master with a slave in separate processes: whether the slave keeps up, and the cost of waiting for it."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark

_BYTES = 200_000_000
SECONDS = 1.5


class Node:
    """A broker process for one benchmark."""

    def __init__(self, lab: Lab, name: str, **settings: object) -> None:
        settings = {
            "storePathRootDir": str(lab.scratch / name),
            "listenPort": 0,
            "slaveTimeout": 60_000,
            "diskSpaceWarningLevelRatio": 100,
            **settings,
        }
        command = [sys.executable, "-m", "benchmarks.ha_node", json.dumps(settings)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        lab.keep_for_one(process)
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self.port, self.ha_port = map(int, self._stdout.readline().split())

    def ask(self, line: str) -> str:
        self._stdin.write(line + "\n")
        self._stdin.flush()
        return self._stdout.readline()

    def slave(self, lab: Lab, name: str) -> None:
        """Start a slave of this master."""
        Node(lab, name, brokerRole="SLAVE", brokerId=1, haMasterAddress=f"127.0.0.1:{self.ha_port}")
        self.ask("slaves")


@benchmark("ha.append", unit="MB/s", ceiling="appends of a master without a slave")
def appends(lab: Lab, _: str) -> Pair:
    """From the first append until the slave has the last: messages of 1 KiB in batches of 500."""
    alone, master = Node(lab, "alone"), Node(lab, "master")
    master.slave(lab, "slave")

    def measure(node: Node) -> float:
        return _BYTES / 1e6 / float(node.ask(str(_BYTES)))

    return Pair(lambda: measure(master), lambda: measure(alone))


@benchmark("ha.sync.1", "ha.sync.16", unit="messages/s", ceiling="an ASYNC_MASTER with a slave")
def synchronous_sends(lab: Lab, conns: str) -> Pair:
    """Every response waits for the slave."""
    nodes = {}
    for role in ("SYNC_MASTER", "ASYNC_MASTER"):
        nodes[role] = Node(lab, role, brokerRole=role)
        nodes[role].slave(lab, f"{role}-slave")

    def sends(role: str) -> float:
        done = lab.load("send", port=nodes[role].port, topic="sends", size=128, conns=int(conns), seconds=SECONDS)
        return float(done["requests"] / done["seconds"])

    return Pair(lambda: sends("SYNC_MASTER"), lambda: sends("ASYNC_MASTER"))
