"""Every container of a server that grows with what peers send has a bound: a kind of state, or another reason.

The finder reads the sources of ``broker`` and ``namesrv``: an attribute that starts as an empty dictionary, set, list
or deque is a container. A new one fails the test until :data:`BOUNDED_BY` has it, with its bound.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import spark_rocket
from spark_rocket.protocol.requests import STATE_LIMITS, state

_PACKAGE = Path(spark_rocket.__file__).parent
_FOLDERS = ("broker", "namesrv")
_CALLS = {"dict", "set", "list", "deque", "OrderedDict", "defaultdict", "Counter", "CachedTexts"}

# Bounds that no request may extend.
CONFIGURED = "names of files, timers and servers in the configuration"
ONE_REQUEST = "a request, and ends with it"
IN_THE_LOG = "messages in the log: ends with their settlement"
OWN_BOUND = "a constant in its module"

#: Attribute -> the kind of state that bounds it, or another reason. Indexes have the bound of what they index.
BOUNDED_BY: dict[str, str] = {
    "broker.broker_environment.BackgroundTasks._running": CONFIGURED,
    "broker.broker.Broker._timers": CONFIGURED,
    "broker.delivery.delivery_timers.DeliveryTimers.by_topic": CONFIGURED,
    "broker.delivery.held_requests.HeldFamily.lines": state.HELD_POPS,
    "broker.delivery.held_requests.HeldRequests._by_channel": state.HELD_POPS,
    "broker.delivery.held_requests.HeldRequests._watched": state.HELD_POPS,
    "broker.delivery.held_requests.HeldRequests._woken": state.HELD_POPS,
    "broker.delivery.held_requests._Line.waiters": state.HELD_POPS,
    "broker.metrics.exporter._Cached.pairs": OWN_BOUND,
    "broker.metrics.exporter._Cached.stored": state.CONSUMER_OFFSETS,
    "broker.metrics.exporter._Cached.topics": state.TOPICS,
    "broker.pop.acks.AckGatherer._acked": state.ACKS,
    "broker.pop.acks.AckGatherer._unwritten": state.ACKS,
    "broker.pop.consumer_order_info_manager.ConsumerOrderInfoManager._ends": state.ORDERED_POPS,
    "broker.pop.consumer_order_info_manager.ConsumerOrderInfoManager._expected": state.ORDERED_POPS,
    "broker.pop.consumer_order_info_manager.ConsumerOrderInfoManager._texts": state.ORDERED_POPS,
    "broker.pop.consumer_order_info_manager.ConsumerOrderInfoManager.table": state.ORDERED_POPS,
    "broker.pop.consumer_order_info_manager.OrderInfo.offset_list": ONE_REQUEST,
    "broker.pop.pop_service.PopService._used_keys": ONE_REQUEST,
    "broker.pop.requests.PopResult.msg_offset_infos": ONE_REQUEST,
    "broker.pop.requests.PopResult.order_count_infos": ONE_REQUEST,
    "broker.pop.requests.PopResult.records": ONE_REQUEST,
    "broker.pop.requests.PopResult.start_offset_infos": ONE_REQUEST,
    "broker.pop.revive.PopReviver._heap": IN_THE_LOG,
    "broker.pop.revive.PopReviver._open": IN_THE_LOG,
    "broker.pop.revive.PopReviver._unsettled": IN_THE_LOG,
    "broker.pop.turns.QueueTurns._next": OWN_BOUND,
    "broker.processors.assignment.QueryAssignmentProcessor._routes": state.ASSIGNMENT_ROUTES,
    "broker.registration.NameServerRegistration._tasks": CONFIGURED,
    "broker.registration._NameServer.topics": state.TOPICS,
    "broker.registration._NameServer.waiting": CONFIGURED,
    "broker.replication.master.ReplicationMaster._connections": CONFIGURED,
    "broker.replication.master.ReplicationMaster._waiters": ONE_REQUEST,
    "broker.replication.master_connection.MasterConnection._pieces": ONE_REQUEST,
    "broker.replication.slave.ReplicationSlave._grown": ONE_REQUEST,
    "broker.responses.Responses._flushed": ONE_REQUEST,
    "broker.send_targets.SendTargets.cached": state.TOPICS,
    "broker.settling_topics.SettlingTopics._changed": state.TOPICS,
    "broker.settling_topics.SettlingTopics._unsaved": CONFIGURED,
    "broker.settling_topics.SettlingTopics.table": state.TOPICS,
    "broker.slave_synchronize.SlaveSynchronize._unlisted": state.TOPICS,
    "broker.state.broker_config.BrokerConfig.others": OWN_BOUND,
    "broker.state.broker_config.BrokerConfig.tls": CONFIGURED,
    "broker.state.broker_stats.BrokerStats.committed": state.TOPICS,
    "broker.state.broker_stats.BrokerStats.groups": state.GROUP_COUNTS,
    "broker.state.broker_stats.BrokerStats.rolled_back": state.TOPICS,
    "broker.state.broker_stats.BrokerStats.topics": state.TOPICS,
    "broker.state.broker_stats.GroupCounts.pulled": state.GROUP_COUNTS,
    "broker.state.broker_stats.StatsWindows._last": state.GROUP_COUNTS,
    "broker.state.client_manager.ClientInfo.subscribed": state.SUBSCRIPTIONS,
    "broker.state.client_manager.ClientManager._consumes": state.CONSUMERS,
    "broker.state.client_manager.ClientManager._producers_by_id": state.PRODUCERS,
    "broker.state.client_manager.ClientManager._produces": state.PRODUCERS,
    "broker.state.client_manager.ClientManager.consumers": state.CONSUMERS,
    "broker.state.client_manager.ClientManager.producers": state.PRODUCERS,
    "broker.state.client_manager.ConsumerGroup.subscriptions": state.SUBSCRIPTIONS,
    "broker.state.client_manager.Members._by_channel": state.PRODUCERS,
    "broker.state.config_files.ConfigSaver._given": CONFIGURED,
    "broker.state.config_files.ConfigSaver._problems": CONFIGURED,
    "broker.state.config_files.ConfigSaver._timers": CONFIGURED,
    "broker.state.config_files.ConfigSaver._later": CONFIGURED,
    "broker.state.config_files.ConfigSaver._waiting": CONFIGURED,
    "broker.state.config_files.ConfigSaver._writing": CONFIGURED,
    "broker.state.consumer_offset_manager.ConsumerOffsetManager._groups": state.GROUP_TOPICS,
    "broker.state.consumer_offset_manager.ConsumerOffsetManager._reset": state.CONSUMER_OFFSETS,
    "broker.state.consumer_offset_manager.ConsumerOffsetManager._topics": state.GROUP_TOPICS,
    "broker.state.consumer_offset_manager.ConsumerOffsetManager.table": state.GROUP_TOPICS,
    "broker.state.message_request_mode_manager.MessageRequestModeManager.table": state.REQUEST_MODES,
    "broker.state.rebalance_lock_manager.RebalanceLockManager._locks": state.QUEUE_LOCKS,
    "broker.state.subscription_group_manager.SubscriptionGroupManager._forbidden": CONFIGURED,
    "broker.state.topic_config_manager.TopicConfigManager._adopted": state.TOPICS,
    "broker.state.versioned_table.VersionedTable._texts": state.TOPICS,
    "broker.state.versioned_table.VersionedTable.table": state.TOPICS,
    "broker.transactions.transactional_message_service.TransactionalMessageService._queues": CONFIGURED,
    "broker.transactions.transactional_message_service._HalfQueue.copies": IN_THE_LOG,
    "broker.transactions.transactional_message_service._HalfQueue.decided": IN_THE_LOG,
    "broker.transactions.transactional_message_service._HalfQueue.recent": IN_THE_LOG,
    "namesrv.kv_config.KVConfigManager._bytes": state.KV_ENTRIES,
    "namesrv.kv_config.KVConfigManager._table": state.KV_ENTRIES,
    "namesrv.large_registrations.LargeRegistrations._waiting": ONE_REQUEST,
    "namesrv.namesrv_processor.NamesrvProcessor._unsaved": ONE_REQUEST,
    "namesrv.route_info.RouteInfoManager._brokers": state.BROKERS,
    "namesrv.route_info.RouteInfoManager._filter_servers": state.BROKERS,
    "namesrv.route_info.RouteInfoManager._live": state.BROKERS,
    "namesrv.route_info.RouteInfoManager._of_channel": state.BROKERS,
    "namesrv.topic_table.TopicTable._brokers_of": state.REGISTERED_TOPICS,
    "namesrv.topic_table.TopicTable._of_broker": state.REGISTERED_TOPICS,
    "namesrv.topic_table.TopicTable._removed": state.REGISTERED_TOPICS,
}


def containers() -> Iterator[str]:
    for folder in _FOLDERS:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            module = ".".join(path.relative_to(_PACKAGE).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    yield from (f"{module}.{node.name}.{name}" for name in _attributes(node))


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        target: ast.expr | None = each.target if isinstance(each, ast.AnnAssign) else None
        if isinstance(each, ast.Assign) and len(each.targets) == 1:
            target = each.targets[0]
        if target is None or not _is_container(each.value):  # type: ignore[attr-defined]
            continue
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            yield target.attr
        elif isinstance(target, ast.Name) and _is_factory(each.value):  # type: ignore[attr-defined]
            yield target.id


def _is_container(value: ast.expr | None) -> bool:
    """Whether it is an empty container, or a dataclass field that starts as one."""
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=ast.Name(id=name), args=[]) if name in _CALLS:
            return not any(keyword.arg == "maxlen" for keyword in value.keywords)
        case ast.ListComp() | ast.DictComp():
            return isinstance(value, ast.ListComp) and _is_container(value.elt)
    return _is_factory(value)


def _is_factory(value: ast.expr | None) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == "field"
        and any(
            keyword.arg == "default_factory" and isinstance(keyword.value, ast.Name) and keyword.value.id in _CALLS
            for keyword in value.keywords
        )
    )


def test_every_growing_container_has_a_bound() -> None:
    found = set(containers())
    assert found - BOUNDED_BY.keys() == set(), "say in BOUNDED_BY what bounds these"
    assert BOUNDED_BY.keys() - found == set(), "these are gone"
    assert set(BOUNDED_BY.values()) <= {*STATE_LIMITS, CONFIGURED, ONE_REQUEST, IN_THE_LOG, OWN_BOUND}


def test_the_finder_finds_each_way_to_write_a_container() -> None:
    source = """
class A:
    one: dict[str, int] = field(default_factory=dict)
    no: int = 0
    def __init__(self):
        self.two = {}
        self.three: set[int] = set()
        self.four = [OrderedDict() for _ in range(3)]
        self.five: deque[int] = deque()
        self.six: list[int] = []
        self.no = deque(maxlen=3)
        self.no = {"a": 1}
        no = {}
"""
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    assert sorted(_attributes(node)) == ["five", "four", "one", "six", "three", "two"]
