"""What ``rocket doctor --grpc`` looks at: the endpoint of RocketMQ 5's own clients, ours or Apache's proxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from spark_rocket.cli.commands.connect import Link
from spark_rocket.cli.commands.doctor_checks import Finding, reach
from spark_rocket.client.core.config import find_credentials
from spark_rocket.errors import ClientError
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.probe import Probe, check_http2
from spark_rocket.remoting.tls.settings import TlsSettings, Verify, as_settings

_UNCHECKED = TlsSettings(enable=True, verify=Verify.NONE)
_REMEDIES = {
    Code.TOPIC_NOT_FOUND: "Create it (rocket topic create TOPIC): clients of RocketMQ 5 never create a topic.",
    Code.UNAUTHORIZED: "Give an account of its plain_acl.yml: --access-key and --secret-key, or --credentials.",
    Code.FORBIDDEN: "Give the account PUB or SUB on the topic in the proxy's plain_acl.yml.",
    Code.INTERNAL_SERVER_ERROR: "Can the proxy reach its name servers and brokers? Its option -n and its log say more.",
    Code.NOT_IMPLEMENTED: "Does the proxy's option -n name name servers?",
}
_SEE_LOG = "See the proxy's log."


def check_grpc(link: Link, endpoint: str, topic: str | None) -> Iterator[Finding]:
    """Is it reachable, by TLS or plaintext, does it serve, and does it know the topic?"""
    about = f"gRPC {endpoint}"
    if problem := reach(endpoint):
        remedy = "Does rocket proxy run there? --host and --grpc-port say where it listens (127.0.0.1:8081)."
        yield Finding(about, "wrong", f"cannot be reached: {problem}", remedy)
        return
    calling = link.options()
    tls = as_settings(calling["tls"])
    found: dict[str, bytes] = {}
    failed: dict[str, ClientError] = {}
    for kind, settings in (("plaintext", None), ("TLS", tls or _UNCHECKED)):
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
    about = f"gRPC route of {topic}"
    try:
        found = probe.route(topic)
    except ClientError as error:
        return Finding(about, "wrong", error.message, _SEE_LOG)
    code = found.status.code
    if code != Code.OK:
        return Finding(about, "wrong", f"{Code.Name(code)}: {found.status.message}", _REMEDIES.get(code, _SEE_LOG))
    brokers = sorted({queue.broker.name for queue in found.message_queues})
    return Finding(about, "ok", f"{len(found.message_queues)} queues on {', '.join(brokers)}")
