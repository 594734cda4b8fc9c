"""Requests altered in any way: the short way of those that were permitted before decides as the long one does."""

from __future__ import annotations

import copy
import random
from pathlib import Path

from spark_rocket.acl.rules import AclRules
from spark_rocket.broker.acl.control import AccessControl
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.auth import Credentials, RequestSigner
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand, SerializeType
from spark_rocket.remoting.server.channel import Channel

ACCOUNTS = """
accounts:
- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}
- accessKey: alice-key
  secretKey: al1ce-s3cr3t
  topicPerms: [orders=PUB, bills=SUB]
  groupPerms: [readers=SUB]
- {accessKey: bob-key, secretKey: b0b-s3cr3t, topicPerms: [orders=SUB, bills=PUB], groupPerms: [others=SUB]}
- {accessKey: white-key, secretKey: wh1te-s3cr3t, whiteRemoteAddress: 10.0.0.*}
"""
STATES = (
    ACCOUNTS,
    ACCOUNTS.replace("orders=PUB", "orders=DENY").replace("b0b-s3cr3t", "b0b-n3w-s3cr3t"),
    ACCOUNTS + "globalWhiteRemoteAddresses: [10.0.0.5]\n",
)
CREDENTIALS = [
    Credentials("root-key", "r00t-s3cr3t"),
    Credentials("alice-key", "al1ce-s3cr3t"),
    Credentials("bob-key", "b0b-s3cr3t"),
    Credentials("white-key", "wh1te-s3cr3t"),
    Credentials("alice-key", "wrong-s3cr3t"),
]
CODES = [
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.UPDATE_CONSUMER_OFFSET,
]
TOPICS = ["orders", "bills", "%RETRY%readers", "%RETRY%others", "", "RMQ_SYS_TRACE_TOPIC", "örders"]
GROUPS = ["readers", "others", ""]
FIELDS = ["b", "topic", "consumerGroup", "more", "AccessKey", "Signature"]


class Peer:
    def __init__(self, remote_addr: str) -> None:
        self.remote_addr = remote_addr
        self.attributes: dict[str, object] = {}


def handled(channel: Channel, request: RemotingCommand) -> RemotingCommand:
    return request


def signed(rnd: random.Random) -> RemotingCommand:
    ext = {rnd.choice(FIELDS[:2]): rnd.choice(TOPICS), "x": str(rnd.randint(0, 2))}
    if rnd.random() < 0.5:
        ext["consumerGroup"] = rnd.choice(GROUPS)
    request = RemotingCommand.request(rnd.choice(CODES), ext, rnd.choice([b"", b"body"]))
    RequestSigner(rnd.choice(CREDENTIALS)).sign(request)
    return request


def altered(rnd: random.Random, request: RemotingCommand) -> RemotingCommand:
    request = copy.copy(request)
    ext = request.ext_fields = dict(request.ext_fields)
    kind = rnd.randrange(12)
    if kind == 0:
        del ext[rnd.choice(list(ext))]
    elif kind in (1, 2):
        ext[rnd.choice(FIELDS)] = rnd.choice([*TOPICS, *GROUPS, "alice-key", "root-key"])
    elif kind == 3:
        request.body = b"altered"
    elif kind == 4:
        request.code = rnd.choice(CODES)
    elif kind == 5:
        request.ext_fields = dict(rnd.sample(sorted(ext.items()), len(ext)))
    if request.code < 1 << 15:  # others have no place in the short header
        request.serialize_type = rnd.choice(list(SerializeType))
    return RemotingCommand.decode(memoryview(request.encode())[4:])


def test_what_was_permitted_before_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)

    def control() -> AccessControl:
        return AccessControl(path, topic_at=lambda _: None, clock=lambda: 0)

    def decision(of: AccessControl, peer: object, request: RemotingCommand) -> str:
        try:
            of.guarded({request.code: handled})[request.code](peer, request)  # type: ignore[arg-type]
        except RefusedError as error:
            return error.message
        return "permitted"

    rnd = random.Random(7)
    used, new = control(), control()
    requests = [signed(rnd) for _ in range(150)]
    peers = [Peer(address) for address in ("10.0.0.5:1", "10.0.0.6:1", "11.0.0.1:2", "[::1]:3")]
    permitted = 0
    for number in range(3_000):
        if number % 150 == 0:
            content = rnd.choice(STATES).encode()
            used.take(AclRules.from_bytes(content, "used"))
            new.take(AclRules.from_bytes(content, "new"))
        request, peer = altered(rnd, rnd.choice(requests)), rnd.choice(peers)
        for account in new.rules.accounts.values():
            account.met.clear()
        found = decision(used, peer, request)
        assert found == decision(new, Peer(peer.remote_addr), request), (request, peer.remote_addr)
        permitted += found == "permitted"
    assert 300 < permitted < 2_700
