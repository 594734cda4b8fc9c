"""``rocket doctor``: check the requirements of a pipeline, on this machine and on Spark's executors.

It checks Java, Spark and Python on this machine, the Python of Spark's workers, the name server, and the addresses that
brokers advertise. ``--grpc`` adds a gRPC endpoint, ``--exactly-once`` the requirements of that guarantee. ``--master``
or ``--remote`` starts a small job that repeats the checks on the executors. Each line is a finding, with the remedy
below it if there is a problem.

Exit status: 0 no problem, 1 at least one. RocketMQ has no counterpart.
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
from spark_rocket.protocol.durability import durability
from spark_rocket.remoting.server.sockets import is_loopback

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.datasource.exactly_once.replace import Evidence
    from spark_rocket.proxy.probe import Probe

_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}
_GRPC_REMEDIES = {
    "TOPIC_NOT_FOUND": "Create it (rocket topic create TOPIC): clients of RocketMQ 5 never create a topic.",
    "UNAUTHORIZED": "Set an account of its plain_acl.yml: --access-key and --secret-key, or --credentials.",
    "FORBIDDEN": "Grant the account PUB or SUB on the topic in the proxy's plain_acl.yml.",
    "INTERNAL_SERVER_ERROR": "Check that the proxy can reach its name servers (-n) and brokers. See its log.",
    "NOT_IMPLEMENTED": "Check that the proxy's option -n lists name servers.",
}
_SEE_LOG = "See the proxy's log."
_VERSION_TIMEOUT_S = 10.0  # for a program that prints its version
_CONNECT_TIMEOUT_S = 3.0
_RETENTION_HOURS = 72  # the default of stagingRetention
_MIN_VERSIONS = {"pyspark": (4, 0), "pyarrow": (18,), "numpy": (2,), "pandas": (2, 2)}


@click.command()
@connection
@click.option("-t", "--topic", metavar="TOPIC", shell_complete=complete_topics, help="check this topic")
@click.option("--grpc", metavar="HOST:PORT", help="check this gRPC endpoint (rocket proxy)")
@click.option(
    "--exactly-once", is_flag=True, help="check the broker settings that deliveryGuarantee=exactlyOnce requires"
)
@click.option(
    "--staging-topic", default="ROCKET_SINK_STAGING", metavar="TOPIC", help="with --exactly-once: stagingTopic"
)
@click.option("--ledger-topic", default="ROCKET_SINK_LEDGER", metavar="TOPIC", help="with --exactly-once: ledgerTopic")
@click.option("--master", metavar="URL", help="check the executors of this Spark: local[2], spark://host:7077, yarn")
@click.option("--remote", metavar="URL", help="check executors through Spark Connect: sc://host:15002")
@click.option("--py-files", metavar="FILES", help="with --master: files to ship with the job")
@click.option("--json", "as_json", is_flag=True, help="print one finding per line as JSON")
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
    """Check the requirements of a pipeline: Java, Spark and Python, name server and brokers.

    The checks run on this machine, and with --master or --remote on the executors too. --grpc adds the endpoint
    of RocketMQ 5 clients, with the same TLS options and account.

    --exactly-once checks that each broker acknowledges only durable messages, that it retains them long enough,
    and that the ledger topic has one queue. With --topic, it checks only the brokers of that topic, the staging
    topic and the ledger topic.
    """
    exclusive({"--master": master, "--remote": remote})
    wrong = warnings = 0
    spark = {"master": master, "remote": remote, "py_files": py_files}
    for finding in _findings(link, topic, grpc, (staging_topic, ledger_topic) if exactly_once else None, spark):
        wrong += finding.grade == "wrong"
        warnings += finding.grade == "warning"
        if as_json:
            show.line(asdict(finding))
            continue
        grade = show.coloured(f"{finding.grade:>7}", _COLOURS[finding.grade])
        print(f"{grade}  {finding.about}: {finding.text}", flush=True)
        if finding.remedy:
            print(f"         {finding.remedy}")
    if not as_json:
        print(f"\n{_summary(wrong, warnings)}")
    return 1 if wrong else 0


def _summary(wrong: int, warnings: int) -> str:
    counts = [(wrong, "problem"), (warnings, "warning")]
    found = [f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count]
    return f"{', '.join(found)} found" if found else "no problems found"


def _findings(
    link: Link, topic: str | None, grpc: str | None, sink: tuple[str, str] | None, spark: dict[str, str | None]
) -> Iterator[Finding]:
    yield from check_python()
    yield check_java()
    yield check_module()
    yield check_workers_python()
    addresses: list[str] = []
    yield from _guarded("name server", check_servers(link, topic, addresses.append))
    if grpc is not None:
        yield from check_grpc(link, grpc, topic)
    if sink is not None:
        yield from _guarded(f"topic {sink[1]}", check_exactly_once(link, topic, *sink))
    if spark["master"] or spark["remote"]:
        from spark_rocket.datasource.executors import ask_executors

        yield from check_executors(lambda: ask_executors(addresses, **spark))


@dataclass(frozen=True)
class Finding:
    """The subject of a check, its result, and the remedy of a problem. ``grade`` is ok, warning or wrong."""

    about: str
    grade: str
    text: str
    remedy: str = ""


# --- this machine ----------------------------------------------------------------------------------------------------


def check_python() -> Iterator[Finding]:
    version = platform.python_version()
    grade = "ok" if sys.version_info >= (3, 11) else "wrong"
    remedy = "" if grade == "ok" else "Use Python 3.11 or newer."
    yield Finding("Python", grade, f"{version} at {sys.executable}", remedy)
    for package, lowest in _MIN_VERSIONS.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, "wrong", "not installed here", f"pip install {package}")
            continue
        numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
        if numbers < lowest:
            remedy = f'Required: {_dotted(lowest)} or newer. Run pip install -U "{package}>={_dotted(lowest)}"'
            yield Finding(package, "wrong", found, remedy)
        elif package == "pyspark" and numbers < (4, 2):
            remedy = "Use PySpark 4.2 or newer to set maxOffsetsPerTrigger or maxBytesPerTrigger."
            yield Finding(package, "warning", found, remedy)
        elif package == "pandas" and numbers >= (3,):
            yield Finding(package, "warning", found, 'PySpark does not fully support it. Run pip install "pandas<3"')
        else:
            yield Finding(package, "ok", found)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def check_java() -> Finding:
    """Check the Java that Spark's launcher uses: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "Install Java 17 or newer (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."
    if java is None:
        return Finding("Java", "wrong", "not found on PATH, and JAVA_HOME is not set", remedy)
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as problem:
        return Finding("Java", "wrong", f"{java} failed: {problem}", remedy)
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', output)
    if found is None:
        return Finding("Java", "warning", f"unknown version of {java}", "Spark 4 needs Java 17 or newer.")
    if int(found[1]) < 17:
        return Finding("Java", "wrong", f"{found[0]} at {java}", remedy)
    return Finding("Java", "ok", f"{found[0]} at {java}")


def check_module() -> Finding:
    spec = importlib.util.find_spec("pyspark_rocket")
    remedy = "Install spark-rocket into this Python: pip install -e . in its checkout"
    if spec is None:
        return Finding('format("rocket")', "wrong", "this Python has no module pyspark_rocket", remedy)
    if not hasattr(importlib.import_module("pyspark_rocket"), "DefaultSource"):
        return Finding('format("rocket")', "wrong", f"{spec.origin} cannot be imported", "See the packages above.")
    return Finding('format("rocket")', "ok", f"found in {spec.origin}")


_ASK_WORKER = (
    "import sys; sys.path = [p for p in sys.path if p]; import importlib.util as u; "
    "print(sys.executable, *[n for n in ('pyspark_rocket', 'pyarrow', 'numpy') if u.find_spec(n) is None])"
)


def check_workers_python() -> Finding:
    name = os.environ.get("PYSPARK_PYTHON")
    setting = f"PYSPARK_PYTHON={name}" if name else "python3, since PYSPARK_PYTHON is not set"
    remedy = f"export PYSPARK_PYTHON={sys.executable}"
    try:
        done = subprocess.run(
            [name or "python3", "-c", _ASK_WORKER],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
        executable, *missing = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        return Finding("workers' Python", "wrong", f"{setting}: failed: {problem}", remedy)
    if missing:
        return Finding("workers' Python", "wrong", f"{setting} ({executable}) lacks {', '.join(missing)}", remedy)
    return Finding("workers' Python", "ok", setting if executable == name else f"{setting}: {executable}")


# --- the servers -----------------------------------------------------------------------------------------------------


def _guarded(about: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings; an error ends them, as the last one."""
    try:
        yield from findings
    except RocketError as error:
        yield Finding(about, "wrong", error.message, error.remedy)


def check_servers(link: Link, topic: str | None, found: Callable[[str], None]) -> Iterator[Finding]:
    """Check name server, brokers and topic from this machine. ``found`` is called with each server's address."""
    with link.admin() as admin:
        servers = admin.name_servers
        for server in servers:
            found(server)
        brokers = admin.brokers()
        count = len({broker.name for broker in brokers})
        yield Finding("name server", "ok", f"{';'.join(servers)} responds with {count} broker{'s' * (count != 1)}")
        if not brokers:
            remedy = "Start a broker with this name server (namesrvAddr)."
            yield Finding("brokers", "wrong", "none is registered", remedy)
        for broker in brokers:
            found(broker.address)
            about = f"broker {broker.name} ({'master' if broker.is_master else 'slave'})"
            finding = check_address(about, broker.address, servers)
            if finding.grade != "wrong" and (error := broker.failure) is not None:
                finding = Finding(about, "wrong", error.message, error.remedy)
            yield finding
        if topic is not None:
            yield from _guarded(f"topic {topic}", _check_topic(admin, topic))


def _check_topic(admin: Admin, topic: str) -> Iterator[Finding]:
    queues = admin.offsets(topic)
    count = sum(high - low for low, high in queues.values())
    yield Finding(f"topic {topic}", "ok", f"{len(queues)} queues, {count:,} messages")


def check_exactly_once(link: Link, topic: str | None, staging: str, ledger: str) -> Iterator[Finding]:
    """Check brokers and the ledger topic for ``deliveryGuarantee=exactlyOnce``.

    Checks all brokers, or with ``topic`` those of that topic and of the sink's own topics.
    """
    from spark_rocket.datasource.exactly_once.replace import ledger_evidence

    with link.admin() as admin:
        brokers = {*admin.cluster_info().broker_addr_table}
        if topic is not None:
            brokers = {broker for each in (topic, staging, ledger) for broker in _brokers_of(admin, each)}
        for broker in sorted(brokers):
            about = f"broker {broker}, exactly once"
            yield from _guarded(about, _check_settings(admin, broker))
        with link.reader() as reader:
            yield _place_finding(ledger, ledger_evidence(admin, reader, ledger))


def _place_finding(ledger: str, evidence: Sequence[Evidence]) -> Finding:
    from spark_rocket.datasource.exactly_once.replace import NO_ENTRY, is_clear

    about = f"topic {ledger}"
    queues = [each for each in evidence if each.source.startswith(f"{ledger}/")]
    brokers = {each.broker for each in evidence}
    if not queues and brokers == {NO_ENTRY}:
        return Finding(about, "ok", "does not exist: the first query creates it")
    if len(queues) == 1 and is_clear(evidence):
        return Finding(about, "ok", f"has 1 queue on {queues[0].broker}, as all name servers have recorded")
    shown = ", ".join(f"{each.source}: {each.broker} {each.ledger}".rstrip() for each in evidence)
    if len(queues) == 1 and brokers == {NO_ENTRY, queues[0].broker}:
        text = f"has 1 queue, and its place is not recorded at all name servers yet ({shown})"
        return Finding(about, "warning", text, "The next query records it.")
    remedy = "Start the broker of the ledger. rocket offsets ledger shows its place; it must have one queue in all."
    return Finding(about, "wrong", f"has {len(queues)} queues ({shown})", remedy)


def _brokers_of(admin: Admin, topic: str) -> set[str]:
    """Return the brokers of a topic; none if it does not exist yet: the sink creates its own topics."""
    try:
        return {queue.broker_name for queue in admin.queues(topic)}
    except TopicNotFoundError:
        return set()


def _check_settings(admin: Admin, broker: str) -> Iterator[Finding]:
    yield from check_durability(broker, admin.broker_config(broker))


def check_durability(broker: str, config: Mapping[str, str]) -> Iterator[Finding]:
    about = f"broker {broker}, exactly once"
    flush, role = config.get("flushDiskType", "unknown"), config.get("brokerRole", "unknown")
    if durability(flush, role).is_durable:
        yield Finding(
            about, "ok", f"acknowledges messages when they are durable (flushDiskType={flush}, brokerRole={role})"
        )
    else:
        remedy = "Set flushDiskType=SYNC_FLUSH, or brokerRole=SYNC_MASTER with a slave."
        text = f"acknowledges messages that are not durable (flushDiskType={flush}, brokerRole={role})"
        yield Finding(about, "warning", text, remedy)
    hours = config.get("fileReservedTime", "")
    if hours.isdecimal() and int(hours) < _RETENTION_HOURS:
        remedy = "Raise fileReservedTime, or lower stagingRetention and restart crashed queries within that time."
        yield Finding(about, "warning", f"retains messages for {hours} hours (fileReservedTime), less than 72", remedy)


def check_address(about: str, address: str, name_servers: Sequence[str]) -> Finding:
    problem = reach(address)
    is_remote = not all(is_loopback(server.rpartition(":")[0]) for server in name_servers)
    if problem:
        return Finding(
            about,
            "wrong",
            f"advertises {address}, which cannot be reached: {problem}",
            "Check that it runs and that its setting brokerIP1 is its address for clients.",
        )
    if is_loopback(address.rpartition(":")[0]) and is_remote:
        return Finding(
            about,
            "warning",
            f"advertises {address}, a loopback address",
            "Set brokerIP1 in its broker.conf to an address that other machines can reach.",
        )
    return Finding(about, "ok", f"reachable at its advertised address {address}")


def reach(address: str) -> str:
    """Connect to an address; return the error, empty for success."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as problem:
        return str(problem)
    return ""


# --- a gRPC endpoint -------------------------------------------------------------------------------------------------


def check_grpc(link: Link, endpoint: str, topic: str | None) -> Iterator[Finding]:
    """Check that an endpoint is reachable, by TLS or plaintext, that it is serving, and the route of the topic."""
    from spark_rocket.client.core.client_config import find_credentials
    from spark_rocket.proxy.probe import Probe, check_http2
    from spark_rocket.remoting.tls.settings import TlsSettings, Verify, as_settings

    about = f"gRPC {endpoint}"
    if problem := reach(endpoint):
        remedy = "Check that rocket proxy runs there; it listens on --host and --grpc-port (127.0.0.1:8081)."
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
            problem, remedy = "it accepts only TLS", "Add --tls, and set up clients for TLS (enableSsl)."
        yield Finding(about, "wrong", f"{wanted} connection: {problem}", remedy)
        return
    yield Finding(about, "ok", f"reachable; accepts {' and '.join(found)}")
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
            return Finding("gRPC health", "warning", "no health service, like Apache's proxy")
        return Finding("gRPC health", "wrong", error.message, _SEE_LOG)
    remedy = "" if found == "SERVING" else f"It is starting or stopping: retry. {_SEE_LOG}"
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


# --- the executors ---------------------------------------------------------------------------------------------------


def check_executors(ask: Callable[[], list[dict[str, object]]]) -> Iterator[Finding]:
    """Check the workers: one row for each machine and Python."""
    try:
        workers = ask()
    except Exception as error:  # Spark's errors have no common class
        first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        remedy = "Check the master's address and Spark's log."
        yield Finding("executors", "wrong", f"the job failed: {first}", remedy)
        return
    for worker in workers:
        about = f"executor on {worker['host']}"
        yield Finding(about, "ok", f"Python {worker['python']} at {worker['executable']}")
        missing = worker["missing"]
        if isinstance(missing, list) and missing:
            remedy = (
                "Ship the connector: rocket package, then --py-files spark_rocket.zip."
                if missing == ["spark_rocket"]
                else "Install them there, or set PYSPARK_PYTHON to a Python with them."
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
