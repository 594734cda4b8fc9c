"""The indexed route tables against a plain model, for any sequence of requests and events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spark_rocket.errors import RefusedError
from spark_rocket.namesrv.route_info import RouteInfoManager
from spark_rocket.namesrv.topic_table import TopicLimits
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig
from spark_rocket.protocol.wire.bodies.route import QueueData
from spark_rocket.protocol.wire.codes import PERM_WRITE

TOPICS = ["t", "u", "v", "w"]
BROKERS = ["a", "b", "c"]
CHANNELS = ["x", "y"]
CLUSTER = {"a": "one", "b": "one", "c": "two"}
LIMITS = TopicLimits(topics_of_broker=3, entries=7, queues=9)
QUEUES = [1, 8, 10, -1]  # the last two are refused

brokers, topics, channels = st.sampled_from(BROKERS), st.sampled_from(TOPICS), st.sampled_from(CHANNELS)


class Routes(RuleBasedStateMachine):
    """The model has one dictionary; each operation iterates over all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tables = RouteInfoManager(lambda: self.now, LIMITS)
        self.queues: dict[tuple[str, str], tuple[int, int]] = {}  # topic, broker -> queues, perm
        self.live: dict[str, tuple[str, float, int | None]] = {}  # broker -> channel, time, version

    def _put(self, topic: str, broker: str, queues: int, perm: int) -> bool:
        of_broker = sum(name == broker for _, name in self.queues)
        full = of_broker >= LIMITS.topics_of_broker or len(self.queues) >= LIMITS.entries
        if not 0 <= queues <= LIMITS.queues or ((topic, broker) not in self.queues and full):
            return False
        self.queues[topic, broker] = (queues, perm)
        return True

    def _remove(self, broker: str) -> None:
        self.live.pop(broker, None)
        self.queues = {key: value for key, value in self.queues.items() if key[1] != broker}

    @rule(
        broker=brokers,
        channel=channels,
        version=st.integers(1, 2),
        registered=st.dictionaries(topics, st.sampled_from(QUEUES)),
    )
    def register(self, broker: str, channel: str, version: int, registered: dict[str, int]) -> None:
        before = self.live.get(broker)
        changed = before is None or before[2] != version
        fits = True
        for topic, queues in registered.items():
            if changed or (topic, broker) not in self.queues:
                fits &= self._put(topic, broker, queues, 6)
        known = None if not fits or (before is None and len(registered) == 1) else version
        self.live[broker] = (channel, self.now, known)
        try:
            self.tables.register_broker(
                cluster=CLUSTER[broker],
                broker_name=broker,
                broker_id=0,
                address=f"{broker}:1",
                ha_address="",
                topics={topic: TopicConfig(topic, queues, queues, 6) for topic, queues in registered.items()},
                data_version=DataVersion(0, 0, version),
                channel=channel,
            )
            assert fits
        except RefusedError:
            assert not fits

    @rule(topic=topics, broker=brokers, queues=st.sampled_from(QUEUES))
    def register_topic(self, topic: str, broker: str, queues: int) -> None:
        fits = broker not in self.live or self._put(topic, broker, queues, 2)
        try:
            self.tables.register_topic(topic, [QueueData(broker, queues, queues, 2)])
            assert fits
        except RefusedError:
            assert not fits

    @rule(broker=brokers)
    def unregister(self, broker: str) -> None:
        self._remove(broker)
        self.tables.unregister_broker(CLUSTER[broker], broker, 0, f"{broker}:1")

    @rule(channel=channels)
    def close(self, channel: str) -> None:
        for broker in [broker for broker, live in self.live.items() if live[0] == channel]:
            self._remove(broker)
        self.tables.channel_closed(channel)

    @rule(seconds=st.sampled_from([1, 70]))
    def expire(self, seconds: int) -> None:
        self.now += seconds
        expired = [broker for broker, live in self.live.items() if self.now - live[1] > 120]
        for broker in expired:
            self._remove(broker)
        assert sorted(live.broker_name for live in self.tables.expire()) == sorted(expired)

    @rule(topic=topics, cluster=st.sampled_from([None, "one", "two", "other"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.queues = {
            key: value
            for key, value in self.queues.items()
            if key[0] != topic or cluster not in (None, CLUSTER[key[1]])
        }
        self.tables.delete_topic(topic, cluster)

    @rule(broker=brokers, allowed=st.booleans())
    def set_write_permission(self, broker: str, allowed: bool) -> None:
        of_broker = [key for key in self.queues if key[1] == broker]
        for key in of_broker:
            queues, perm = self.queues[key]
            self.queues[key] = (queues, perm | PERM_WRITE if allowed else perm & ~PERM_WRITE)
        assert self.tables.set_write_permission(broker, allowed) == len(of_broker)

    @rule(broker=brokers, channel=channels)
    def restart(self, broker: str, channel: str) -> None:
        """A broker that registers its topics again before the removed ones are swept."""
        topics = {name: queues for (name, of), (queues, _) in self.queues.items() if of == broker}
        self.unregister(broker)
        self.register(broker, channel, 1, topics)

    @rule()
    def sweep(self) -> None:
        while self.tables.sweep():
            pass
        assert self.tables.topic_count == len(self.tables.topics())

    @invariant()
    def same(self) -> None:
        for topic in TOPICS:
            expected = {broker: value for (name, broker), value in self.queues.items() if name == topic}
            route = self.tables.route(topic)
            found = {} if route is None else {q.broker_name: (q.read_queue_nums, q.perm) for q in route.queue_datas}
            assert found == expected
            assert route is None or {broker.broker_name for broker in route.broker_datas} == set(expected)
        assert self.tables.topics() == sorted({topic for topic, _ in self.queues})
        for cluster in ("one", "two"):
            assert self.tables.topics_of_cluster(cluster) == sorted(
                {topic for topic, broker in self.queues if CLUSTER[broker] == cluster}
            )
        assert {live.broker_name: live.channel for live, _ in self.tables.silences()} == {
            broker: live[0] for broker, live in self.live.items()
        }


TestRoutes = Routes.TestCase
TestRoutes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
