"""``rocket doctor``: is everything there that a pipeline needs, seen from here and from Spark's executors?

It looks at Java, Spark and Python here, at the Python that workers will run, at the name server and at the addresses
that brokers advertise; with ``--grpc`` at a gRPC endpoint, with ``--exactly-once`` at what that guarantee needs; with
``--master`` or ``--remote`` it starts a small job that looks again from where the executors are. Each line says what
was found, and below those that are wrong, what to change.

Exit status: 0 nothing is wrong, 1 something is. Corresponds to nothing in RocketMQ.
"""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import exclusive
from spark_rocket.cli.connect import Link, complete_topics, connection
from spark_rocket.errors import ClientError, RocketError, TopicNotFoundError
from spark_rocket.remoting.server.sockets import is_loopback

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.proxy.probe import Probe

_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}
_GRPC_REMEDIES = {
    "TOPIC_NOT_FOUND": "Create it (rocket topic create TOPIC): clients of RocketMQ 5 never create a topic.",
    "UNAUTHORIZED": "Give an account of its plain_acl.yml: --access-key and --secret-key, or --credentials.",
    "FORBIDDEN": "Give the account PUB or SUB on the topic in the proxy's plain_acl.yml.",
    "INTERNAL_SERVER_ERROR": "Can the proxy reach its name servers and brokers? Its option -n and its log say more.",
    "NOT_IMPLEMENTED": "Does the proxy's option -n name name servers?",
}
_SEE_LOG = "See the proxy's log."
_TIMEOUT = 10.0  # seconds for a program that is asked for its version
_CONNECT = 3.0
_KEPT_HOURS = 72  # the default of stagingRetention
_NEEDED = {"pyspark": ((4, 2), (5,)), "pyarrow": ((18,), None), "numpy": ((2,), None), "pandas": ((2, 2), (3,))}


@click.command()
@connection
@click.option("-t", "--topic", metavar="TOPIC", shell_complete=complete_topics, help="a topic that should be there")
@click.option("--grpc", metavar="HOST:PORT", help="a gRPC endpoint (rocket proxy) that should be there")
@click.option("--exactly-once", is_flag=True, help="are brokers set so that deliveryGuarantee=exactlyOnce holds?")
@click.option(
    "--staging-topic", default="ROCKET_SINK_STAGING", metavar="TOPIC", help="with --exactly-once: option stagingTopic"
)
@click.option(
    "--ledger-topic", default="ROCKET_SINK_LEDGER", metavar="TOPIC", help="with --exactly-once: option ledgerTopic"
)
@click.option("--master", metavar="URL", help="ask this Spark's executors: local[2], spark://host:7077, yarn")
@click.option("--remote", metavar="URL", help="the same through Spark Connect: sc://host:15002")
@click.option("--py-files", metavar="FILES", help="with --master: what the jobs take along")
@click.option("--json", "as_json", is_flag=True, help="findings as JSON, one a line")
def doctor(
    link: Link,
    topic: str | None,
    grpc: str | None,
    exactly_once: bool,
    staging_topic: str,
    ledger_topic: str,
    master: str | None,
    remote: str | None,
    py_files: str | None,
    as_json: bool,
) -> int:
    """Check all that a pipeline needs: Java, Spark and Python, name server and brokers.

    Looked at from here, and with --master or --remote from the executors too. With --grpc also the endpoint
    of RocketMQ 5's own clients; --tls and the account are used for it as well.

    With --exactly-once: whether each broker acknowledges messages only when they are durable, and keeps them for
    long enough, and whether the ledger topic has one queue. With --topic only the brokers of that topic, the staging
    topic and the ledger topic are checked.
    """
    exclusive({"--master": master, "--remote": remote})
    wrong = 0
    spark = {"master": master, "remote": remote, "py_files": py_files}
    for finding in _findings(link, topic, grpc, (staging_topic, ledger_topic) if exactly_once else None, spark):
        wrong += finding.grade == "wrong"
        if as_json:
            show.line(asdict(finding))
            continue
        grade = show.coloured(f"{finding.grade:>7}", _COLOURS[finding.grade])
        print(f"{grade}  {finding.about}: {finding.text}", flush=True)
        if finding.remedy:
            print(f"         {finding.remedy}")
    if not as_json:
        print("\nnothing is wrong" if not wrong else f"\n{wrong} thing{'s are' if wrong > 1 else ' is'} wrong")
    return 1 if wrong else 0


def _findings(
    link: Link, topic: str | None, grpc: str | None, sink: tuple[str, str] | None, spark: dict[str, str | None]
) -> Iterator[Finding]:
    yield from check_python()
    yield check_java()
    yield check_module()
    yield check_workers_python()
    addresses: list[str] = []
    yield from check_servers(link, topic, addresses.append)
    if grpc is not None:
        yield from check_grpc(link, grpc, topic)
    if sink is not None:
        yield from check_exactly_once(link, topic, *sink)
    if spark["master"] or spark["remote"]:
        from spark_rocket.datasource.executors import ask_executors

        yield from check_executors(lambda: ask_executors(addresses, **spark))


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


def check_exactly_once(link: Link, topic: str | None, staging: str, ledger: str) -> Iterator[Finding]:
    """Whether brokers and the ledger topic are as ``deliveryGuarantee=exactlyOnce`` needs them.

    All brokers, or with ``topic`` those that have it or the sink's own topics.
    """
    with link.admin() as admin:
        try:
            brokers = {*admin.cluster_info().broker_addr_table}
            if topic is not None:
                brokers = {broker for each in (topic, staging, ledger) for broker in _brokers_of(admin, each)}
            for broker in sorted(brokers):
                yield from _settings_of(admin, broker)
            queues = len(admin.offsets(ledger))
        except TopicNotFoundError:
            yield Finding(f"topic {ledger}", "ok", "does not exist: the first query creates it")
        except RocketError as error:
            yield Finding(f"topic {ledger}", "wrong", error.message, error.remedy)
        else:
            remedy = "Keep queue 0 on the broker that has the records, or give new queries another ledgerTopic."
            grade, remedy = ("ok", "") if queues == 1 else ("wrong", remedy)
            yield Finding(f"topic {ledger}", grade, f"has {queues} queue{'s' * (queues != 1)}", remedy)


def _brokers_of(admin: Admin, topic: str) -> set[str]:
    """The brokers of a topic; the sink creates missing topics of its own."""
    try:
        return {queue.broker_name for queue in admin.queues(topic)}
    except TopicNotFoundError:
        return set()


def _settings_of(admin: Admin, broker: str) -> Iterator[Finding]:
    try:
        config = admin.broker_config(broker)
    except RocketError as error:
        yield Finding(f"broker {broker}, exactly once", "wrong", error.message, error.remedy)
    else:
        yield from check_durability(broker, config)


def check_durability(broker: str, config: Mapping[str, str]) -> Iterator[Finding]:
    about = f"broker {broker}, exactly once"
    flush, role = config.get("flushDiskType", "unknown"), config.get("brokerRole", "unknown")
    if flush == "SYNC_FLUSH" or role == "SYNC_MASTER":
        yield Finding(
            about, "ok", f"acknowledges messages when they are durable (flushDiskType={flush}, brokerRole={role})"
        )
    else:
        remedy = "Set flushDiskType=SYNC_FLUSH, or brokerRole=SYNC_MASTER with a slave."
        text = f"acknowledges messages that it could lose (flushDiskType={flush}, brokerRole={role})"
        yield Finding(about, "warning", text, remedy)
    kept = config.get("fileReservedTime", "")
    if kept.isdecimal() and int(kept) < _KEPT_HOURS:
        remedy = "Raise fileReservedTime, or restart a crashed query sooner and set stagingRetention to that."
        yield Finding(about, "warning", f"keeps messages for {kept} hours (fileReservedTime), less than 72", remedy)


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


# --- a gRPC endpoint -----------------------------------------------------------------------------------------------


def check_grpc(link: Link, endpoint: str, topic: str | None) -> Iterator[Finding]:
    """Is it reachable, by TLS or plaintext, does it serve, and does it know the topic?"""
    from spark_rocket.client.core.config import find_credentials
    from spark_rocket.proxy.probe import Probe, check_http2
    from spark_rocket.remoting.tls.settings import TlsSettings, Verify, as_settings

    about = f"gRPC {endpoint}"
    if problem := reach(endpoint):
        remedy = "Does rocket proxy run there? --host and --grpc-port say where it listens (127.0.0.1:8081)."
        yield Finding(about, "wrong", f"cannot be reached: {problem}", remedy)
        return
    calling = link.options()
    tls = as_settings(calling["tls"])
    found: dict[str, bytes] = {}
    failed: dict[str, ClientError] = {}
    for kind, settings in (("plaintext", None), ("TLS", tls or TlsSettings(enable=True, verify=Verify.NONE))):
        try:
            found[kind] = check_http2(endpoint, settings, link.timeout)
        except ClientError as error:
            failed[kind] = error
    wanted = "plaintext" if tls is None else "TLS"
    if wanted not in found:
        problem, remedy = failed[wanted].message, failed[wanted].remedy
        if found and tls is None:
            problem, remedy = "it takes TLS only", "Add --tls, and have clients use TLS (enableSsl)."
        yield Finding(about, "wrong", f"called with {wanted}: {problem}", remedy)
        return
    yield Finding(about, "ok", f"reached; it takes {' and '.join(found)}")
    keys = (calling["access_key"], calling["secret_key"], calling.get("security_token"))
    with closing(Probe(endpoint, found[wanted], find_credentials(*keys), link.timeout)) as probe:
        yield _health(probe)
        if topic is not None:
            yield _route(probe, topic)


def _health(probe: Probe) -> Finding:
    try:
        found = probe.health()
    except ClientError as error:
        if error.code == "UNIMPLEMENTED":
            return Finding("gRPC health", "warning", "there is no health service, as in Apache's proxy")
        return Finding("gRPC health", "wrong", error.message, _SEE_LOG)
    remedy = "" if found == "SERVING" else f"It is starting or stopping: ask again. {_SEE_LOG}"
    return Finding("gRPC health", "wrong" if remedy else "ok", found, remedy)


def _route(probe: Probe, topic: str) -> Finding:
    from spark_rocket.proxy.definitions import Code

    about = f"gRPC route of {topic}"
    try:
        found = probe.route(topic)
    except ClientError as error:
        return Finding(about, "wrong", error.message, _SEE_LOG)
    name = Code.Name(found.status.code)
    if name != "OK":
        return Finding(about, "wrong", f"{name}: {found.status.message}", _GRPC_REMEDIES.get(name, _SEE_LOG))
    brokers = sorted({queue.broker.name for queue in found.message_queues})
    return Finding(about, "ok", f"{len(found.message_queues)} queues on {', '.join(brokers)}")


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
