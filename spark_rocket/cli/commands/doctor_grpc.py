"""What ``rocket doctor --grpc`` checks on an endpoint of the gRPC proxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from spark_rocket.cli.commands.doctor_finding import Finding, reach
from spark_rocket.cli.connect import Link
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.proxy.probe import Probe

_GRPC_REMEDIES = {
    "TOPIC_NOT_FOUND": "Create it (rocket topic create TOPIC): clients of RocketMQ 5 never create a topic.",
    "UNAUTHORIZED": "Set an account of its plain_acl.yml: --access-key and --secret-key, or --credentials.",
    "FORBIDDEN": "Grant the account PUB or SUB on the topic in the proxy's plain_acl.yml.",
    "INTERNAL_SERVER_ERROR": "Check that the proxy can reach its name servers (-n) and brokers. See its log.",
    "NOT_IMPLEMENTED": "Check that the proxy's option -n lists name servers.",
}
_SEE_LOG = "See the proxy's log."


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
