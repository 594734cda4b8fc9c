"""Brokers and name servers that respond as one version of Apache's, where versions differ.

Based on recorded responses of 4.9.8 and the observed behaviour of 4.3, 4.9.8 and 5.3.3. The rest is minimal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from spark_rocket.protocol.filter.tags import parse_tags
from spark_rocket.protocol.ids import encode_offset_msg_id, pack_host
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.properties import decode_properties, encode_properties
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody, HeartbeatData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand, SerializeType
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader
from spark_rocket.protocol.wire.headers.pull import PullMessageRequestHeader
from tests.kit.scripted import Fake

HOST = ("127.0.0.1", 10911)
HOLD_SECONDS = 0.02


class Version(NamedTuple):
    """``spelling`` of routes: with bare numbers as keys, or standard JSON; ``header``: the encoding of responses."""

    name: str
    is_5: bool
    standard_json: bool = True
    header: SerializeType = SerializeType.JSON


VERSIONS = (
    Version("4.3", False, standard_json=False),
    Version("4.9.8", False),
    Version("5.3.3", True),
    Version("5.3.3 in ROCKETMQ headers", True, header=SerializeType.ROCKETMQ),
)


class Stored(NamedTuple):
    """A message stored in a queue."""

    time: int
    body: bytes
    properties: bytes
    flag: int


class ApacheBroker(Fake):
    """``queues``: topic -> its queues, each a list. Stores and serves messages as its version does."""

    def __init__(self, version: Version, name: str = "b0") -> None:
        self.version = version
        self.name = name
        self.queues: dict[str, list[list[Stored]]] = {}
        self.first: dict[tuple[str, int], int] = {}  # where a queue's beginning was deleted
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.groups: dict[str, set[str]] = {}  # known groups and their members
        self.now = 1_000
        super().__init__(
            {
                RequestCode.SEND_MESSAGE_V2: self._send,
                RequestCode.SEND_BATCH_MESSAGE: self._send,
                RequestCode.PULL_MESSAGE: self._pull,
                RequestCode.QUERY_CONSUMER_OFFSET: self._committed,
                RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
                RequestCode.GET_MAX_OFFSET: lambda request: self._offset(request, self._end(request)),
                RequestCode.GET_MIN_OFFSET: lambda request: self._offset(request, self._begin(request)),
                RequestCode.HEART_BEAT: self._heartbeat,
                RequestCode.UNREGISTER_CLIENT: self._unregister,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
                RequestCode.LOCK_BATCH_MQ: self._lock,
                RequestCode.UNLOCK_BATCH_MQ: self._say,
                RequestCode.CHECK_CLIENT_CONFIG: self._say,
            }
        )

    def _serve(self, channel: Any, request: RemotingCommand) -> RemotingCommand | None:
        answer = super()._serve(channel, request)
        if answer is not None:
            answer.serialize_type = self.version.header
            if request.code == RequestCode.PULL_MESSAGE and answer.code == ResponseCode.PULL_NOT_FOUND:
                self.loop.call_later(HOLD_SECONDS, channel.write, answer)
                return None
        return answer

    def _say(
        self,
        request: RemotingCommand,
        code: int = 0,
        remark: str | None = None,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        if code == 0 and not self.version.is_5:
            remark = "not set any response code"  # some successful responses of 4.x keep this remark
        return RemotingCommand.response(request, code, remark, {k: str(v) for k, v in (ext or {}).items()}, body)

    # --- sending ------------------------------------------------------------------------------------------------

    def _send(self, request: RemotingCommand) -> RemotingCommand:
        header = SendMessageRequestHeader.from_ext_v2(request.ext_fields)
        queues = self.queues.get(header.topic)
        if queues is None:
            return self._say(request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        if header.queue_id >= len(queues):
            return self._no_queue(request, f"request queueId[{header.queue_id}] is illegal")
        queue = queues[header.queue_id]
        first = len(queue)
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            queue += [
                Stored(self.now, bytes(body), bytes(raw), flag) for flag, body, raw in decode_batch_body(request.body)
            ]
        else:
            queue.append(Stored(self.now, bytes(request.body), (header.properties or "").encode(), header.flag))
        ids = ",".join(encode_offset_msg_id(HOST, offset) for offset in range(first, len(queue)))
        ext: dict[str, object] = {"msgId": ids, "queueId": header.queue_id, "queueOffset": first}
        if self.version.is_5:
            ext["transactionId"] = decode_properties(queue[first].properties)["UNIQ_KEY"]
            ext["recallHandle"] = "handle"
        return self._say(request, 0, None, ext | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})

    def _no_queue(self, request: RemotingCommand, remark: str) -> RemotingCommand:
        code = ResponseCode.INVALID_PARAMETER if self.version.is_5 else ResponseCode.SYSTEM_ERROR
        return self._say(request, code, f"{remark}, topic: [t] topicConfig.readQueueNums: [2] consumer: [127.0.0.1:1]")

    # --- pulling ------------------------------------------------------------------------------------------------

    def _pull(self, request: RemotingCommand) -> RemotingCommand:
        header = PullMessageRequestHeader.from_ext(request.ext_fields)
        self.groups.setdefault(header.consumer_group, set())  # autoCreateSubscriptionGroup
        queues = self.queues.get(header.topic, [])
        if header.queue_id >= len(queues):
            return self._no_queue(request, f"queueId[{header.queue_id}] is illegal")
        if header.sys_flag & 1 and header.commit_offset >= 0:
            self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        queue, low = queues[header.queue_id], self.first.get((header.topic, header.queue_id), 0)
        at = header.queue_offset
        ext: dict[str, object] = {"suggestWhichBrokerId": 0, "minOffset": low, "maxOffset": len(queue)}
        if self.version.is_5:
            ext |= {"offsetDelta": 0, "topicSysFlag": 0, "groupSysFlag": 0}
        if not low <= at <= len(queue):
            ext["nextBeginOffset"] = low if at < low else len(queue)
            return self._say(request, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", ext)
        if at == len(queue):
            empty = ResponseCode.PULL_NOT_FOUND
            return self._say(request, empty, "OFFSET_OVERFLOW_ONE", ext | {"nextBeginOffset": at})
        tags = parse_tags(header.subscription)
        end = min(len(queue), at + min(header.max_msg_nums, 32))  # whatever maximum the request has
        records = [
            self._record(header.topic, header.queue_id, offset, queue[offset])
            for offset in range(at, end)
            if tags.matches(decode_properties(queue[offset].properties).get("TAGS"))
        ]
        code = 0 if records else ResponseCode.PULL_RETRY_IMMEDIATELY
        return self._say(request, code, "FOUND", ext | {"nextBeginOffset": end}, b"".join(records))

    def _record(self, topic: str, queue_id: int, offset: int, message: Stored) -> bytes:
        properties = decode_properties(message.properties)
        raw = encode_properties(properties).rstrip(b"\x02") + (b"\x02" if self.version.is_5 else b"")
        return encode_record(
            topic.encode(),
            queue_id,
            message.body,
            raw,
            queue_offset=offset,
            physical_offset=offset,
            born_timestamp=1,
            born_host=pack_host(HOST),
            store_timestamp=message.time,
            store_host=pack_host(HOST),
            flag=message.flag,
        )

    # --- offsets ------------------------------------------------------------------------------------------------

    @staticmethod
    def _place(request: RemotingCommand) -> tuple[str, int]:
        return request.ext_fields["topic"], int(request.ext_fields["queueId"])

    def _begin(self, request: RemotingCommand) -> int:
        return self.first.get(self._place(request), 0)

    def _end(self, request: RemotingCommand) -> int:
        topic, queue_id = self._place(request)
        return len(self.queues[topic][queue_id])

    def _offset(self, request: RemotingCommand, offset: int) -> RemotingCommand:
        return self._say(request, 0, None, {"offset": offset})

    def _committed(self, request: RemotingCommand) -> RemotingCommand:
        offset = self.offsets.get((request.ext_fields["consumerGroup"], *self._place(request)))
        if offset is not None:
            return self._offset(request, offset)
        asked_not_to = self.version.is_5 and request.ext_fields.get("setZeroIfNotFound") == "false"
        if self._begin(request) == 0 and not asked_not_to:  # offset 0 is still in memory
            return self._offset(request, 0)
        return self._say(request, ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this is a group consumer first")

    def _commit(self, request: RemotingCommand) -> RemotingCommand:
        group = request.ext_fields["consumerGroup"]
        topic, queue_id = self._place(request)
        if self.version.is_5 and group not in self.groups:
            return self._say(request, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if self.version.is_5 and topic not in self.queues:
            return self._say(request, ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        self.offsets[group, topic, queue_id] = int(request.ext_fields["commitOffset"])
        return self._say(request)

    def _search(self, request: RemotingCommand) -> RemotingCommand:
        topic, queue_id = self._place(request)
        wanted = int(request.ext_fields["timestamp"])
        times = [message.time for message in self.queues[topic][queue_id]]
        if self.version.is_5:
            found = next((offset for offset, time in enumerate(times) if time >= wanted), len(times))
            return self._offset(request, found)  # also below the first offset
        if wanted > times[-1]:
            return self._offset(request, len(times) - 1)
        low = self._begin(request)
        distance = min(abs(time - wanted) for time in times[low:])
        closest = [offset for offset, time in enumerate(times) if offset >= low and abs(time - wanted) == distance]
        return self._offset(request, closest[len(closest) // 2])  # any one of a run with equal times

    # --- groups -------------------------------------------------------------------------------------------------

    def _heartbeat(self, request: RemotingCommand) -> RemotingCommand:
        data = HeartbeatData.from_json(request.body)
        for consumer in data.consumer_data_set:
            assert consumer.subscription_data_set  # always whole: no fingerprint in their place
            self.groups.setdefault(consumer.group_name, set()).add(data.client_id)
            self.queues.setdefault(f"%RETRY%{consumer.group_name}", [[]])
        says = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"} if self.version.is_5 else {}
        return self._say(request, 0, None, says)

    def _unregister(self, request: RemotingCommand) -> RemotingCommand:
        self.groups.get(request.ext_fields.get("consumerGroup", ""), set()).discard(request.ext_fields["clientID"])
        return self._say(request)

    def _members(self, request: RemotingCommand) -> RemotingCommand:
        members = self.groups.get(request.ext_fields["consumerGroup"])
        if not members:
            return self._say(request, ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return self._say(request, 0, None, None, GetConsumerListByGroupResponseBody(sorted(members)).to_json())

    def _lock(self, request: RemotingCommand) -> RemotingCommand:
        wanted = LockBatchRequestBody.from_json(request.body).mq_set
        return self._say(request, 0, None, None, LockBatchResponseBody(wanted).to_json())


class ApacheCluster:
    """A name server and a broker of one version; ``addresses`` are what all routes name."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.broker = ApacheBroker(version)
        self.name_server = Fake({RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route})
        self.addresses: dict[str, dict[int, str]] = {"b0": {0: self.broker.address}}
        self.perm = 6

    def add(self, topic: str, queues: int = 2) -> str:
        self.broker.queues[topic] = [[] for _ in range(queues)]
        return topic

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        topic = request.ext_fields["topic"]
        queues = self.broker.queues.get(topic)
        if queues is None:
            remark = f"No topic route info in name server for the topic: {topic}"
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, remark)
        answer = RemotingCommand.response(request, 0, None, None, self._spelt(len(queues)))
        answer.serialize_type = self.version.header
        return answer

    def _spelt(self, queues: int) -> bytes:
        flag = "topicSysFlag" if self.version.standard_json else "topicSynFlag"
        acting = {"enableActingMaster": False} if self.version.is_5 else {}
        route = {
            "brokerDatas": [
                {"brokerAddrs": {str(id_): at for id_, at in ids.items()}, "brokerName": name, "cluster": "c", **acting}
                for name, ids in self.addresses.items()
            ],
            "filterServerTable": {},
            "queueDatas": [
                {"brokerName": name, "perm": self.perm, "readQueueNums": queues, flag: 0, "writeQueueNums": queues}
                for name in self.addresses
            ],
        }
        raw = orjson.dumps(route)
        if not self.version.standard_json:
            for id_ in range(3):
                raw = raw.replace(b'"%d":' % id_, b"%d:" % id_)
        return raw

    def close(self) -> None:
        self.name_server.close()
        self.broker.close()
