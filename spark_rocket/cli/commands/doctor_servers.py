"""What ``rocket doctor`` checks on servers: name server, brokers, and their settings for exactly-once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from spark_rocket.cli.commands.doctor_finding import Finding, reach
from spark_rocket.cli.commands.doctor_grants import is_missing_permission
from spark_rocket.cli.connect import Link
from spark_rocket.client.core.address_map import NO_ADDRESS_MAP, AddressMap
from spark_rocket.errors import ProxyUnsupportedError
from spark_rocket.protocol.durability import durability
from spark_rocket.protocol.requests.pipelines import SentRequest
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.remoting.address import is_loopback

_STATE = SentRequest(RequestCode.GET_BROKER_RUNTIME_INFO)
_RETENTION_HOURS = 72  # the default of stagingRetention


def check_servers(link: Link, found: Callable[[str], None]) -> Iterator[Finding]:
    """Check name server and brokers from this machine. ``found`` is called with each server's address."""
    with link.admin() as admin:
        servers = admin.name_servers
        for server in servers:
            found(server)
        try:
            brokers = admin.brokers()
        except ProxyUnsupportedError:
            text = f"{';'.join(servers)} is a proxy: it does not tell which brokers there are, nor how they are set"
            remedy = (
                "-t and --write check reads and writes through it. Check the rest where a name server can be reached."
            )
            yield Finding("name server", "warning", text, remedy)
            return
        count = len({broker.name for broker in brokers})
        yield Finding("name server", "ok", f"{';'.join(servers)} responds with {count} broker{'s' * (count != 1)}")
        if not brokers:
            remedy = "Start a broker with this name server (namesrvAddr)."
            yield Finding("brokers", "wrong", "none is registered", remedy)
        for broker in brokers:
            found(broker.address)
            about = f"broker {broker.name} ({'master' if broker.is_master else 'slave'})"
            finding = check_address(about, broker.address, servers, link.addresses())
            error = broker.failure  # a pipeline's account need not be allowed to see the state of brokers
            if finding.grade != "wrong" and error is not None and not is_missing_permission(error, _STATE):
                finding = Finding(about, "wrong", error.message, error.remedy)
            yield finding


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


def check_address(
    about: str, address: str, name_servers: Sequence[str], address_map: AddressMap = NO_ADDRESS_MAP
) -> Finding:
    target = address_map.target(address)
    problem = reach(target)
    is_remote = not all(is_loopback(server.rpartition(":")[0]) for server in name_servers)
    if problem:
        at = "" if target == address else f" at {target} (--address-map)"
        return Finding(
            about,
            "wrong",
            f"advertises {address}, which cannot be reached{at}: {problem}",
            "Check that it runs and that its setting brokerIP1 is its address for clients. If you cannot change that, "
            f"map the address: --address-map {address}=REACHABLE, option addressMap of a pipeline.",
        )
    if target != address:
        return Finding(about, "ok", f"reachable at {target}; advertises {address}")
    if is_loopback(address.rpartition(":")[0]) and is_remote:
        return Finding(
            about,
            "warning",
            f"advertises {address}, a loopback address",
            "Set brokerIP1 in its broker.conf to an address that other machines can reach.",
        )
    return Finding(about, "ok", f"reachable at its advertised address {address}")
