"""What ``rocket doctor`` looks at, but for gRPC endpoints: this machine, its servers, and Spark's executors."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_rocket.cli.commands.connect import Link
from spark_rocket.errors import RocketError
from spark_rocket.remoting.server.sockets import is_loopback

_TIMEOUT = 10.0  # seconds for a program that is asked for its version
_CONNECT = 3.0
_NEEDED = {"pyspark": ((4, 2), (5,)), "pyarrow": ((18,), None), "numpy": ((2,), None), "pandas": ((2, 2), (3,))}


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and, where it is wrong, what to do. ``grade`` is ok, warning or wrong."""

    about: str
    grade: str
    text: str
    remedy: str = ""


# --- here ----------------------------------------------------------------------------------------------------------


def check_python() -> Iterator[Finding]:
    """This Python and the packages that the connector stands on."""
    version = platform.python_version()
    grade = "ok" if sys.version_info >= (3, 11) else "wrong"
    remedy = "" if grade == "ok" else "Use Python 3.11 or newer."
    yield Finding("Python", grade, f"{version} at {sys.executable}", remedy)
    for package, (lowest, below) in _NEEDED.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, "wrong", "not installed here", f"pip install {package}")
            continue
        numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
        if numbers < lowest or (below and numbers >= below):
            wanted = f"{_dotted(lowest)} or newer" + (f", below {_dotted(below)}" if below else "")
            remedy = f'It should be {wanted}: pip install -U "{package}>={_dotted(lowest)}"'
            yield Finding(package, "wrong", found, remedy)
        else:
            yield Finding(package, "ok", found)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def check_java() -> Finding:
    """The Java that Spark's launcher will take: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "Install Java 17 or newer (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME to one."
    if java is None:
        return Finding("Java", "wrong", "there is none on PATH, and JAVA_HOME is not set", remedy)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT, check=True).stderr
    except (OSError, subprocess.SubprocessError) as problem:
        return Finding("Java", "wrong", f"{java} does not run: {problem}", remedy)
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', said)
    if found is None:
        return Finding("Java", "warning", f"{java} does not say its version", "Spark 4 needs 17 or newer.")
    if int(found[1]) < 17:
        return Finding("Java", "wrong", f"{found[0]} at {java}", remedy)
    return Finding("Java", "ok", f"{found[0]} at {java}")


def check_module() -> Finding:
    """What Spark imports to find the format."""
    spec = importlib.util.find_spec("pyspark_rocket")
    remedy = "Install spark-rocket into this Python: pip install -e . in its checkout"
    if spec is None:
        return Finding('format("rocket")', "wrong", "this Python has no module pyspark_rocket", remedy)
    if not hasattr(importlib.import_module("pyspark_rocket"), "DefaultSource"):
        return Finding('format("rocket")', "wrong", f"{spec.origin} does not import", "See the packages above.")
    return Finding('format("rocket")', "ok", f"found in {spec.origin}")


_ASK_WORKER = (
    "import sys; sys.path = [p for p in sys.path if p]; import importlib.util as u; "
    "print(sys.executable, *[n for n in ('pyspark_rocket', 'pyarrow', 'numpy') if u.find_spec(n) is None])"
)


def check_workers_python() -> Finding:
    """The Python that Spark starts workers with on this machine."""
    name = os.environ.get("PYSPARK_PYTHON")
    said = f"PYSPARK_PYTHON={name}" if name else "python3, since PYSPARK_PYTHON is not set"
    remedy = f"export PYSPARK_PYTHON={sys.executable}"
    try:
        done = subprocess.run(
            [name or "python3", "-c", _ASK_WORKER], capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
        executable, *missing = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        return Finding("workers' Python", "wrong", f"{said}: does not run: {problem}", remedy)
    if missing:
        return Finding("workers' Python", "wrong", f"{said} ({executable}) lacks {', '.join(missing)}", remedy)
    return Finding("workers' Python", "ok", said if executable == name else f"{said}: {executable}")


# --- the servers ---------------------------------------------------------------------------------------------------


def check_servers(link: Link, topic: str | None, found: Callable[[str], None]) -> Iterator[Finding]:
    """Name server, brokers and topic as this machine sees them; ``found`` is told the addresses of the servers."""
    from spark_rocket.client.core.config import ClientConfig

    try:
        servers = ClientConfig.of(link.name_server).name_servers
    except RocketError as error:
        yield Finding("name server", "wrong", error.message, error.remedy)
        return
    for server in servers:
        found(server)
    with link.admin() as admin:
        try:
            clusters = admin.cluster_info()
        except RocketError as error:
            yield Finding("name server", "wrong", error.message, error.remedy)
            return
        count = len(clusters.broker_addr_table)
        yield Finding("name server", "ok", f"{';'.join(servers)} answers and knows {count} broker{'s' * (count != 1)}")
        if not clusters.broker_addr_table:
            yield Finding("brokers", "wrong", "none is registered", "Start one with this name server (namesrvAddr).")
        for name, data in sorted(clusters.broker_addr_table.items()):
            for broker_id, address in sorted(data.broker_addrs.items()):
                found(address)
                about = f"broker {name} ({'master' if broker_id == 0 else 'slave'})"
                finding = check_address(about, address, servers)
                if finding.grade != "wrong":
                    try:
                        admin.runtime_info(address)  # which any account may ask
                    except RocketError as error:
                        finding = Finding(about, "wrong", error.message, error.remedy)
                yield finding
        if topic is not None:
            try:
                queues = admin.offsets(topic)
            except RocketError as error:
                yield Finding(f"topic {topic}", "wrong", error.message, error.remedy)
            else:
                count = sum(high - low for low, high in queues.values())
                yield Finding(f"topic {topic}", "ok", f"{len(queues)} queues, {count:,} messages")


def check_address(about: str, address: str, name_servers: Sequence[str]) -> Finding:
    problem = reach(address)
    away = not all(is_loopback(server.rpartition(":")[0]) for server in name_servers)
    if problem:
        return Finding(
            about,
            "wrong",
            f"advertises {address}, which cannot be reached: {problem}",
            "Is it running, and is that its address for clients? It advertises its setting brokerIP1.",
        )
    if is_loopback(address.rpartition(":")[0]) and away:
        return Finding(
            about,
            "warning",
            f"advertises {address}, which is this machine itself, whoever asks",
            "Set brokerIP1 in its broker.conf to an address that others reach.",
        )
    return Finding(about, "ok", f"reached at the address that it advertises, {address}")


def reach(address: str) -> str:
    """Nothing if something listens there, else why not."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
    except (OSError, ValueError) as problem:
        return str(problem)
    return ""


# --- the executors -------------------------------------------------------------------------------------------------


def check_executors(ask: Callable[[], list[dict[str, object]]]) -> Iterator[Finding]:
    """What the workers say of themselves: a row for each machine and Python."""
    try:
        workers = ask()
    except Exception as error:  # Spark's own errors have no class in common
        first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        remedy = "Check the master's address, and Spark's own log."
        yield Finding("executors", "wrong", f"the job failed: {first}", remedy)
        return
    for worker in workers:
        about = f"executor on {worker['host']}"
        yield Finding(about, "ok", f"Python {worker['python']} at {worker['executable']}")
        missing = worker["missing"]
        if isinstance(missing, list) and missing:
            remedy = (
                "Take the connector along: rocket package, then --py-files spark_rocket.zip."
                if missing == ["spark_rocket"]
                else "Install them there, or set PYSPARK_PYTHON to a Python that has them."
            )
            yield Finding(about, "wrong", f"lacks {', '.join(missing)}", remedy)
        unreachable = worker["unreachable"]
        assert isinstance(unreachable, dict)
        for address, problem in unreachable.items():
            yield Finding(
                about,
                "wrong",
                f"cannot reach {address}: {problem}",
                "Open the port between them; brokers must advertise (brokerIP1) an address that executors can reach.",
            )
        if not unreachable:
            yield Finding(about, "ok", "reaches the name servers and all brokers")
