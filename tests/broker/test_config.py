"""broker.conf: Apache's names, validated values, and errors with their place."""

import asyncio
import logging
from pathlib import Path

import pytest

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.state.broker_config import BrokerConfig, nearest_setting
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.durability import FlushDiskType
from spark_rocket.store.paths import StorePaths

APACHE_EXAMPLE = """\
brokerClusterName = DefaultCluster
brokerName = broker-b
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = SYNC_FLUSH
namesrvAddr=10.0.0.1:9876; 10.0.0.2:9876
brokerIP1=192.0.2.7
storePathRootDir=${user.home}/mq
mappedFileSizeCommitLog=1048576
"""


def test_apaches_own_example_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    path = tmp_path / "broker.conf"
    path.write_text(APACHE_EXAMPLE)
    config = BrokerConfig.from_file(path)
    assert config.broker_name == "broker-b"
    assert config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.name_servers == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert config.broker_ip1 == "192.0.2.7"
    assert config.store.store_path == Path("/home/someone/mq")
    assert config.store_config().mapped_file_size_commit_log == 1 << 20
    assert (config.store.delete_when, config.store.file_reserved_time) == ("04", 48)
    assert config.store_config().file_reserved_time == 48
    assert config.others == {}


def test_paths_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    usual = BrokerConfig.from_text("storePathRootDir=/data/store\nstorePathCommitLog=").store_config()
    assert usual.paths == StorePaths.of(Path("/data/store"))
    text = "storePathCommitLog=/d1/log\nstorePathConsumeQueue=${user.home}/queues\nstorePathIndex=~/keys\n"
    paths = BrokerConfig.from_text(f"storePathRootDir=/data/store\n{text}").store_config().paths
    assert (paths.root, paths.commit_log) == (Path("/data/store"), Path("/d1/log"))
    assert (paths.consume_queue, paths.index) == (Path("/home/someone/queues"), Path("/home/someone/keys"))
    everywhere = (  # as many a broker.conf has them
        "storePathRootDir=/data/store\nstorePathCommitLog=/data/store/commitlog\n"
        "storePathConsumeQueue=/data/store/consumequeue\nstorePathIndex=/data/store/index\n"
        "storeCheckpoint=/data/store/checkpoint\nabortFile=/data/store/abort\n"
    )
    config = BrokerConfig.from_text(everywhere)
    assert config.store_config().paths.elsewhere == ()
    assert config.without_effect == ["abortFile", "storeCheckpoint"]


@pytest.mark.live
def test_settings_without_effect_are_logged_once_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def start() -> None:
        unused = "useEpollNativeSelector=true\nstorePathEpochFile=/x\ntransientStorePoolEnable=false\n"
        broker = Broker(BrokerConfig.from_text(f"storePathRootDir={tmp_path}\nlistenPort=0\n{unused}"))
        await broker.start()
        await broker.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(start())
    (line,) = [text for text in caplog.messages if "without effect" in text]
    assert line == (
        "settings without effect in this broker: storePathEpochFile, transientStorePoolEnable, useEpollNativeSelector"
    )


def test_known_settings_of_apache_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    BrokerConfig.from_text(APACHE_EXAMPLE)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("listenPort=abc", "listenPort needs a whole number"),
        ("listenPort=70000", "listenPort must be between 0 and 65535"),
        ("brokerId=-1", "brokerId must be between 0 and"),
        ("flushDiskType=FAST", "flushDiskType needs one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("autoCreateTopicEnable=yes", "autoCreateTopicEnable needs true or false"),
        ("brokerRole=LEADER", "brokerRole needs one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("aclEnable=yes", "aclEnable needs true or false"),
        ("innerClientAuthenticationCredentials=s3cret", "Invalid innerClientAuthenticationCredentials"),
        ("storePathCommitLog=/d1/log,/d2/log", "storePathCommitLog=/d1/log,/d2/log names several directories"),
        ("readOnlyCommitLogStorePaths=/d3/log", "readOnlyCommitLogStorePaths=/d3/log is not supported"),
        ("storePathRootDir=", "storePathRootDir needs a path"),
        ("messageDelayLevel=1s 5x", "Invalid messageDelayLevel '1s 5x'"),
        ("deleteWhen=24", "Invalid deleteWhen '24'"),
        ("deleteWhen=4am", "Invalid deleteWhen '4am'"),
        ("diskMaxUsedSpaceRatio=0", "diskMaxUsedSpaceRatio must be between 1 and 100"),
        ("diskSpaceWarningLevelRatio=101", "diskSpaceWarningLevelRatio must be between 1 and 100"),
        ("fileReservedSize=-1", "fileReservedSize must be at least 0"),
        ("brokerName=", "Invalid brokerName ''"),
        ("brokerName=" + "b" * 101, f"Invalid brokerName '{'b' * 40}'…"),
        ("brokerName=../b", "Invalid brokerName '../b'"),
        ("brokerClusterName=" + "集" * 34, f"Invalid brokerClusterName '{'集' * 34}'"),
        (r"brokerClusterName=a\u0007b", r"Invalid brokerClusterName 'a\x07b'"),
        ("mappedFileSizeConsumeQueue=33", "mappedFileSizeConsumeQueue must be a multiple of 20"),
    ],
)
def test_a_bad_value_names_file_line_and_setting(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# first\nbrokerName=b\n" + line + "\n")
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_file(path)
    assert f"{path}, line 3: " in caught.value.message
    assert complaint in caught.value.message
    assert caught.value.remedy


def test_names_of_brokers_and_clusters() -> None:
    for name in ("b" * 100, "host-1.example.com", "集" * 33):
        assert BrokerConfig.from_text(f"brokerName={name}\nbrokerClusterName={name}").broker_name == name


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read the broker configuration \S*nowhere\.conf"):
        BrokerConfig.from_file(tmp_path / "nowhere.conf")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"brokerName=b\n\xff\xfe")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        BrokerConfig.from_file(path)


def test_an_unknown_name_is_kept_and_the_nearest_known_one_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = BrokerConfig.from_text("flushDiskTipe=SYNC_FLUSH\nzzz=1", "broker.conf")
    assert config.others == {"flushDiskTipe": "SYNC_FLUSH", "zzz": "1"}
    assert "line 1: unknown setting 'flushDiskTipe' is ignored. Did you mean 'flushDiskType'?" in caplog.text
    assert "'zzz' is ignored." in caplog.text
    assert nearest_setting("brokerip1") == "brokerIP1"


def test_every_setting_is_shown_and_read_back() -> None:
    config = BrokerConfig.from_text(APACHE_EXAMPLE)
    assert BrokerConfig.from_text(config.to_text()) == config


def test_settings_as_python_values() -> None:
    config = BrokerConfig.from_properties({"autoCreateTopicEnable": False, "listenPort": 0})
    assert (config.auto_create_topic_enable, config.listen_port) == (False, 0)


def test_disk_levels_in_a_wrong_order_cause_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    text = "diskMaxUsedSpaceRatio=90\ndiskSpaceCleanForciblyRatio=50\ndiskSpaceWarningLevelRatio=10"
    config = BrokerConfig.from_text(text, "broker.conf")
    assert caplog.messages == [
        "broker.conf: diskMaxUsedSpaceRatio 90 is above diskSpaceCleanForciblyRatio 50; it should not be.",
        "broker.conf: diskSpaceCleanForciblyRatio 50 is above diskSpaceWarningLevelRatio 10; it should not be.",
    ]
    assert config.update("diskMaxUsedSpaceRatio=40") == []
    (warning,) = config.update("diskMaxUsedSpaceRatio=60")
    assert "diskMaxUsedSpaceRatio 60 is above diskSpaceCleanForciblyRatio 50" in warning
    assert config.update("diskSpaceCleanForciblyRatio=100\ndiskSpaceWarningLevelRatio=100") == []


def test_an_update_changes_what_can_change() -> None:
    config = BrokerConfig()
    assert config.update("autoCreateTopicEnable=false\nmaxPullBytes=1024\nlistenPort=10911\n") == []
    assert (config.auto_create_topic_enable, config.max_pull_bytes) == (False, 1024)
    assert config.update("fileReservedTime=24\ndeleteWhen=01;13\ndiskSpaceWarningLevelRatio=97") == []
    assert config.store_config().delete_when == "01;13"


@pytest.mark.parametrize(
    "text", ["maxPullBytes=1\nlistenPort=1", "maxPullBytes=1\ntraceOn=maybe", "maxPullBytes=1\ndeleteWhen=25"]
)
def test_an_invalid_update_changes_nothing(text: str) -> None:
    config = BrokerConfig()
    with pytest.raises(ConfigError):
        config.update(text)
    assert config == BrokerConfig()


@pytest.mark.parametrize("name", ["regionId", "useEpollNativeSelector", "misspelt"])
def test_an_update_refuses_a_variable(name: str) -> None:
    """broker.conf would keep ``${HOME}`` as it is, and the next start would expand it."""
    config = BrokerConfig()
    with pytest.raises(ConfigError, match=f"{name} has a variable"):
        config.update(f"{name}=a${{HOME}}b\nbrokerPermission=4")
    assert (config.region_id, config.broker_permission) == ("DefaultRegion", 6)


MISSPELT = [
    ("innerClientAuthenticationCredential", '{"accessKey": "broker", "secretKey": "hunter2hunter2"}'),
    ("inerClientAuthenticationCredentials", "hunter2"),
    ("ourBrokers", '{"accessKey": "broker", "secretKey": "hunter2hunter2"}'),
    ("TLS.server.keyPassword", "hunter2"),
    ("SECRETKEY", "hunter2"),
    ("aclToken", "hunter2"),
]


@pytest.mark.parametrize(("name", "text"), MISSPELT)
def test_a_misspelt_secret_is_not_shown(name: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig.from_properties({name: text, "haMasterAdress": "10.0.0.7:10912"})
    shown = dict(config.to_properties())
    assert shown[name] == "******"
    assert shown["haMasterAdress"] == "10.0.0.7:10912"  # other misspelt settings are shown
    assert f"unknown setting '{name}' is ignored" in caplog.text
    assert "hunter2" not in caplog.text + repr(config) + config.to_text()


def test_an_update_is_bounded_in_length_and_unknown_names() -> None:
    config = BrokerConfig()
    config.update("".join(f"misspelt{number}=1\n" for number in range(60)))
    with pytest.raises(ConfigError, match="would have 110 unknown settings; at most 100"):
        config.update("brokerPermission=4\n" + "".join(f"another{number}=1\n" for number in range(50)))
    assert config.broker_permission == 6
    assert "another1" not in config.others
    config.update("".join(f"misspelt{number}=2\n" for number in range(60)) + "brokerPermission=4")
    assert config.broker_permission == 4
    with pytest.raises(ConfigError, match="at most 65,536"):
        config.update("brokerPermission=6\n" + "#" * 65_536)


def test_a_file_may_have_more_unknown_settings_than_updates_may_add() -> None:
    config = BrokerConfig.from_text("".join(f"misspelt{number}=1\n" for number in range(120)))
    config.update("misspelt0=2\nbrokerPermission=4")
    assert (config.others["misspelt0"], config.broker_permission) == ("2", 4)
    with pytest.raises(ConfigError, match="would have 121 unknown settings"):
        config.update("misspelt120=1")


def test_a_root_is_enough_where_the_home_directory_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(path: Path) -> Path:
        if str(path).startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return path

    monkeypatch.setattr(Path, "expanduser", unknown)
    config = BrokerConfig.from_properties({"storePathRootDir": str(tmp_path)})
    assert config.store_config().store_path == tmp_path
