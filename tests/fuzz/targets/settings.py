"""Files of settings, accounts and tables, and the names in them."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import cast

from spark_rocket.acl.accounts_file import AccountsFile
from spark_rocket.acl.rules import AclRules
from spark_rocket.broker.pop.consumer_order_info_manager import ConsumerOrderInfoManager
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.message_request_mode_manager import MessageRequestModeManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager, alter_attributes
from spark_rocket.client.core.client_config import read_credentials
from spark_rocket.errors import ConfigError, ProtocolError
from spark_rocket.model import group_problem, topic_problem
from spark_rocket.namesrv.kv_config import KVConfigManager
from spark_rocket.protocol import auth as acl
from spark_rocket.protocol.java_properties import parse_properties, render_properties
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant
from spark_rocket.remoting.tls.settings import CONFIG_FILE, TlsSettings
from tests.fuzz.targets.base import file_of, target, text_of


@target(
    b"brokerName=b\nlistenPort=10911\nbrokerRole=SLAVE\nstorePathRootDir=${user.home}/x\nfileReservedTime=72\n",
    b"messageDelayLevel=1s 5s\ndeleteWhen=04;05\ntls.server.mode=enforcing\ndiskMaxUsedSpaceRatio=\\u0039\n",
    errors=(ConfigError,),
    longest=400,
)
def broker_conf(raw: bytes) -> None:
    config = BrokerConfig.from_text(raw.decode("utf-8", "replace"))
    config.to_text()
    config.store_config()
    config.server_tls()
    config.name_servers, config.own_credentials, config.timer_precision  # noqa: B018
    config.check_role()


@target(
    b"maxMessageSize=1024\naclEnable=true\n",
    b"listenPort=1",
    b"tls.server.mode=x",
    b"a=b",
    errors=(ConfigError,),
    longest=200,
)
def broker_conf_update(raw: bytes) -> None:
    """Code 25: an administrator's settings for a running broker."""
    config = BrokerConfig()
    before = config.to_text()
    try:
        config.update(raw.decode("utf-8", "replace"))
    except ConfigError:
        assert config.to_text() == before
        raise


@target(b"a=b\n# c\nd : e\\\n f\n\\u0041=\\ud800\n", errors=(ConfigError,))
def properties_file(raw: bytes) -> None:
    entries = [(name, value) for name, value, _ in parse_properties(raw.decode("utf-8", "replace"))]
    assert [(name, value) for name, value, _ in parse_properties(render_properties(entries))] == entries


@target(
    b"tls.server.mode=permissive\ntls.server.certPath=c\ntls.server.keyPath=k\ntls.enable=true", errors=(ConfigError,)
)
def tls_properties(raw: bytes) -> None:
    entries = parse_properties(raw.decode("utf-8", "replace"))
    given = {name: value for name, value, _ in entries if name != CONFIG_FILE}
    settings = TlsSettings.of(given, {})
    settings.server_mode, settings.checks, settings.properties()


_ACL = b"""globalWhiteRemoteAddresses: [10.0.0.*, "10.0.0.{7,9}"]
accounts:
  - accessKey: billing
    secretKey: "another-long-secret"
    admin: false
    defaultTopicPerm: DENY
    topicPerms: [orders=SUB, invoices=PUB|SUB]
"""


@target(_ACL, b"accounts: []", b"a: &a [*a]", errors=(ConfigError,))
def plain_acl(raw: bytes) -> None:
    """The file of accounts, and what a change of it writes."""
    AclRules.from_bytes(raw, "plain_acl.yml")
    file = AccountsFile.of(raw, "plain_acl.yml")
    again = AccountsFile.of(file.to_yaml(), "")
    assert (again.white, again.accounts) == (file.white, file.accounts)


@target(b"MQv2-HMAC-SHA1 Credential=k/r/s, SignedHeaders=x-mq-date-time, Signature=00ff\n20260131T120000Z")
def authorization(raw: bytes) -> None:
    header, _, when = text_of(raw).partition("\n")
    acl.Authorization.parse(header).is_signed_by(acl.SecretKey("s"), when)
    acl.seconds_of(when)


@target(b"accessKey: a\nsecretKey: '12345678'\n", errors=(ConfigError,))
def credentials_file(raw: bytes) -> None:
    read_credentials(file_of("tools.yml", raw))


@target(b'{"configTable":{"n":{"k":"v"}}}', errors=(ConfigError,))
def kv_config(raw: bytes) -> None:
    manager = KVConfigManager(file_of("kvConfig.json", raw))
    manager.load()
    manager.put("n", "a", "b")
    manager.save()


#: As broker/config_files.py takes them for "this file does not fit".
_DOES_NOT_FIT = (ProtocolError, ValueError, TypeError, KeyError, AttributeError)
_CONFIG_SEEDS = (
    b'{"dataVersion":{"counter":3,"timestamp":1},"topicConfigTable":{"T":{"perm":6,"readQueueNums":4,"topicName":"T","attributes":{"a":"b"}}}}',
    b'{"offsetTable":{"T@g":{0:12,1:5}},"savedAt":17}',
    b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":16}},"forbiddenTable":{"g":{"T":4}}}',
    b'{"messageRequestModeMap":{"T":{"g":{"mode":"POP","popShareQueueNum":2}}}}',
    b'{"table":{"T@g":{0:{"popTime":1,"i":60000,"o":[1,1],"oc":{1:2},"cm":1}}}}',
)


@target(*_CONFIG_SEEDS, errors=_DOES_NOT_FIT, longest=1024)
def config_json(raw: bytes) -> None:
    """topics.json, consumerOffset.json and so on: the broker's own files, and what a slave is sent by its master."""
    stored = loads_tolerant(raw)
    if not isinstance(stored, dict):
        return
    config = _defaults()
    topics = TopicConfigManager(config, lambda: 1)
    groups = SubscriptionGroupManager(config, lambda: 1)
    offsets = ConsumerOffsetManager()
    loop = cast(asyncio.AbstractEventLoop, None)  # none of its timers is set
    order = ConsumerOrderInfoManager(loop, lambda: 1, offsets, topics, groups, lambda *_: None)
    modes = MessageRequestModeManager()
    managers = (topics, groups, offsets, modes, order)
    refused: BaseException | None = None
    for manager in managers:
        for take in (manager.load, getattr(manager, "replace", manager.load)):
            try:
                take(stored)
            except _DOES_NOT_FIT as error:
                refused = error
            else:
                if manager is not order:
                    dumps_fastjson(manager.snapshot(), pretty=True)
    if refused is not None:
        raise refused


@cache
def _defaults() -> BrokerConfig:
    return BrokerConfig()


@target(b"+message.type=FIFO,+cleanup.policy=DELETE", b"-a", b"%RETRY%g", errors=(ValueError,))
def names(raw: bytes) -> None:
    """Names of topics and groups, and a topic's attributes."""
    text = text_of(raw)
    for problem in (topic_problem(text), group_problem(text)):
        assert problem is not None or ("/" not in text and "\0" not in text and ".." not in text and len(text) < 256)
    alter_attributes({}, text, create=True)
