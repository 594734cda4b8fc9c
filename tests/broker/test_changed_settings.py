"""Settings changed while a broker runs (code 25) are in its ``broker.conf`` before the response."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.config_files import change_properties
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from tests.kit.brokers import running

pytestmark = pytest.mark.live

CONF = """\
# Ours, since 2024
brokerName = mine
listenPort=0
fileReservedTime=48
  # kept \\
traceOn : \\
   true
innerClientAuthenticationCredentials={"accessKey": "a", "secretKey": "s3cr3t-of-a"}
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(f"{CONF}storePathRootDir={tmp_path / 'store'}\n", encoding="utf-8")
    path.chmod(0o640)
    return path


def test_changes_are_in_the_file_and_survive_a_restart(
    conf: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = conf.read_text(encoding="utf-8")
    link = tmp_path / "etc" / "broker.conf"
    link.parent.mkdir()
    link.symlink_to(conf)
    changes = {"traceOn": "false", "regionId": "a b", "useEpollNativeSelector": "true", "fileReservedTime": "24"}
    with caplog.at_level(logging.INFO), running(BrokerConfig.from_file(link)) as wire:
        answer = wire.configure(**changes)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        after = before.replace("traceOn : \\\n   true\n", "traceOn=false\n").replace("Time=48", "Time=24")
        assert conf.read_text(encoding="utf-8") == f"{after}regionId=a b\nuseEpollNativeSelector=true\n"
    assert link.is_symlink()
    assert stat.S_IMODE(conf.stat().st_mode) == 0o640
    assert conf.with_name("broker.conf.bak").read_text(encoding="utf-8") == before
    assert "traceOn=false regionId=a b useEpollNativeSelector=true fileReservedTime=24" in caplog.text
    assert "s3cr3t" not in caplog.text
    with running(BrokerConfig.from_file(link)) as wire:
        assert {**changes, "brokerName": "mine"}.items() <= wire.shown().items()


def test_many_at_once_are_all_there(conf: Path) -> None:
    names = ("maxPullBytes", "maxPullMsgNums", "popPollingSize", "popPollingMapSize", "maxPopPollingSize")
    with running(BrokerConfig.from_file(conf)) as wire:
        texts = [f"{name}={number}".encode() for number, name in enumerate(names, 1000)]
        for future in [wire.ask_later(RequestCode.UPDATE_BROKER_CONFIG, text) for text in texts]:
            assert future.result(30).code == ResponseCode.SUCCESS
    config = BrokerConfig.from_file(conf)
    assert (config.max_pull_bytes, config.max_pull_msg_nums, config.max_pop_polling_size) == (1000, 1001, 1004)


@pytest.mark.parametrize("fault", ["no file", "cannot be written", "not text"])
def test_a_failed_write_changes_nothing(conf: Path, fault: str) -> None:
    config = BrokerConfig.from_file(conf)
    if fault == "no file":
        conf.unlink()
    elif fault == "not text":
        conf.write_bytes(b"brokerName=\xff\n")
    else:
        conf.with_name("broker.conf.tmp").mkdir()
    content = conf.read_bytes() if conf.exists() else None
    with running(config) as wire:
        answer = wire.configure(traceOn=False)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(conf) in (answer.remark or "")
        assert wire.shown()["traceOn"] == "true"
    assert (conf.read_bytes() if conf.exists() else None) == content


def test_a_misspelt_one_is_reported_and_not_written(conf: Path) -> None:
    before = conf.read_bytes()
    with running(BrokerConfig.from_file(conf)) as wire:
        assert "Did you mean 'traceOn'?" in (wire.configure(traceon=False).remark or "")
    assert conf.read_bytes() == before


def test_without_a_file_the_response_reports_the_loss_at_the_stop(tmp_path: Path) -> None:
    with running(BrokerConfig.from_properties({"storePathRootDir": tmp_path, "listenPort": 0})) as wire:
        answer = wire.configure(traceOn=False)
        assert answer.code == ResponseCode.SUCCESS
        assert "the change is lost on restart" in (answer.remark or "")
        assert wire.shown()["traceOn"] == "false"


def test_a_failure_at_any_step_leaves_the_old_file_or_the_new_one(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = conf.read_bytes()
    after = before.replace(b"Time=48", b"Time=24")
    steps = 0
    seen = set()
    for failing in range(20):
        conf.write_bytes(before)
        steps = 0

        def step(call: Callable[..., object], failing: int = failing) -> Callable[..., object]:
            def counted(*arguments: object, **more: object) -> object:
                nonlocal steps
                steps += 1
                if steps == failing + 1:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return call(*arguments, **more)

            return counted

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", step(os.fsync))
            patched.setattr(Path, "replace", step(Path.replace))
            try:
                change_properties(conf, {"fileReservedTime": "24"})
            except ConfigError:
                seen.add(conf.read_bytes())
            else:
                break
    assert conf.read_bytes() == after
    assert steps == 6  # of each of .bak and the file: its content, its name, its directory
    assert seen == {before, after}
