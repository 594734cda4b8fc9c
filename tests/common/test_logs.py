"""What servers log, and what they must not."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.common import logs
from spark_rocket.common.logs import JsonFormatter, RateLimited, TextFormatter, fields, log_start, mask, setup_logging
from spark_rocket.errors import ConfigError

KEPT = ("spark_rocket", "spark_rocket.store", "spark_rocket.broker")


@pytest.fixture
def stderr() -> Iterator[io.StringIO]:
    """What goes to the terminal; logging is as it was afterwards."""
    root, taken = logging.getLogger(), io.StringIO()
    handlers, level = list(root.handlers), root.level
    yield taken
    for handler in list(root.handlers):
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    for handler in handlers:
        if handler not in root.handlers:
            root.addHandler(handler)
    root.setLevel(level)
    for name in KEPT:
        logging.getLogger(name).setLevel(logging.NOTSET)


def record(message: str, /, *values: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("spark_rocket.broker.server", logging.WARNING, __file__, 1, message, values, None)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    made.__dict__.update(fields(**more))
    return made


def test_a_line_of_text_has_time_level_module_and_fields() -> None:
    line = TextFormatter().format(record("disk of %s", "store", used=0.97, path="/a b", empty=""))
    assert line == '2023-11-14T22:13:20.250Z WARNING broker.server disk of store used=0.97 path="/a b" empty=""'


def test_a_line_of_json_has_them_too() -> None:
    line = json.loads(JsonFormatter().format(record("disk", used=0.97, path="/a b", message="mine", none=None)))
    assert line == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "WARNING",
        "logger": "spark_rocket.broker.server",
        "message": "disk",
        "used": 0.97,
        "path": "/a b",
        "_message": "mine",
        "none": None,
    }


def test_what_a_peer_sent_cannot_begin_another_line() -> None:
    forged = "x\n2023-11-14T22:13:20.250Z ERROR broker.server all is lost\r\u2028\x1b[2J\x9b2J"
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record("from %s", forged, peer=forged))
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line
        assert "\x9b" not in line


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_what_a_peer_sent_is_cut(formatter: logging.Formatter) -> None:
    """A remark may have 16 MiB, and lines push others out of the rotating files."""
    line = formatter.format(record("remark: %s", "password" * 250_000))
    assert len(line) < 40_000
    assert "2,000,008 characters" in line
    secret = f"{'x' * (logs._MAX_CHARACTERS - 30)} secretKey='hunter2 hunter2 hunter2'"
    assert "hunter2" not in formatter.format(record("%s", secret))


def test_time_to_look_for_secrets_is_linear() -> None:
    """Not a timing test: in quadratic time, it would exceed the suite's own limit."""
    text = "password" * 50_000
    assert mask(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "secretKey=hunter2",
        'settings {"secretKey": "hunter2", "a": 1}',
        "secret_key='hunter2'",
        "SecurityToken: hunter2",
        "tls.server.keyPassword=hunter2",
        "Authorization: hunter2",
        "secretKey\x01hunter2\x02x\x01y",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    assert "hunter2" not in mask(text)
    assert "hunter2" not in TextFormatter().format(record("%s", text))
    assert "hunter2" not in JsonFormatter().format(record("%s", text))
    assert "hunter2" not in JsonFormatter().format(record("x", secretKey="hunter2"))
    assert "hunter2" not in TextFormatter().format(record("x", secretKey="hunter2"))


def test_other_text_is_left_alone() -> None:
    assert mask("accessKey=reader topic=secretary keys=4") == "accessKey=reader topic=secretary keys=4"


def test_levels_by_module(stderr: io.StringIO) -> None:
    setup_logging(levels=["error", "store=debug", "spark_rocket.broker=info"], stream=stderr)
    logging.getLogger("spark_rocket.store.flush").debug("one")
    logging.getLogger("spark_rocket.broker.server").info("two")
    logging.getLogger("spark_rocket.namesrv.server").warning("three")
    logging.getLogger("elsewhere").error("four")
    assert re.findall(r"(one|two|three|four)$", stderr.getvalue(), re.MULTILINE) == ["one", "two", "four"]


@pytest.mark.parametrize("text", ["loud", "store=", "=info", "store=loud", ""])
def test_levels_that_are_none(text: str, stderr: io.StringIO) -> None:
    with pytest.raises(ConfigError, match="Invalid log level"):
        setup_logging(levels=[text])


def test_files_of_each_server_and_warnings_on_the_terminal(tmp_path: Path, stderr: io.StringIO) -> None:
    setup_logging(directory=tmp_path / "logs", names=("broker", "namesrv"), form="json", stream=stderr)
    logging.getLogger("spark_rocket.namesrv.server").info("of the name server")
    logging.getLogger("spark_rocket.broker.server").info("of the broker")
    logging.getLogger("spark_rocket.store.flush").warning("of the store")
    texts = {
        name: [json.loads(line)["message"] for line in (tmp_path / "logs" / f"{name}.log").read_text().splitlines()]
        for name in ("broker", "namesrv")
    }
    assert texts == {"broker": ["of the broker", "of the store"], "namesrv": ["of the name server"]}
    assert [json.loads(line)["message"] for line in stderr.getvalue().splitlines()] == ["of the store"]


def test_files_roll_over_and_old_ones_go(tmp_path: Path, stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MIB", 1_000)
    setup_logging(directory=tmp_path, size_mib=1, count=2, stream=stderr)
    for number in range(100):
        logging.getLogger("spark_rocket.broker.server").info("line %03d of a hundred", number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.log", "broker.log.1", "broker.log.2"]
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.iterdir())
    assert "line 099" in (tmp_path / "broker.log").read_text()


def test_a_directory_that_cannot_be(tmp_path: Path, stderr: io.StringIO) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Cannot write logs"):
        setup_logging(directory=tmp_path / "file")


def test_a_second_setup_replaces_the_first(stderr: io.StringIO) -> None:
    setup_logging(stream=stderr)
    setup_logging(form="json", stream=stderr)
    logging.getLogger("spark_rocket.x").warning("once")
    assert len(stderr.getvalue().splitlines()) == 1


def test_a_start_says_what_differs(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("spark_rocket.broker.server")
    with caplog.at_level(logging.INFO, logger.name):
        log_start(
            logger,
            "broker broker-a",
            [("listenPort", "1"), ("brokerId", "0")],
            [("listenPort", "2"), ("brokerId", "0")],
        )
    (one,) = caplog.records
    assert TextFormatter().format(one).endswith("broker broker-a started listenPort=1")


def test_a_repeated_message_is_logged_once_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    often = RateLimited(logging.getLogger("spark_rocket.x"), 10.0, lambda: now[0])
    for moment, key in ((0, "a"), (1, "a"), (2, "b"), (9.9, "a"), (10, "a"), (21, "a")):
        now[0] = moment
        often.warning(key, "logged by %s", key)
    assert [one.getMessage() for one in caplog.records] == [
        "logged by a",
        "logged by b",
        "logged by a (suppressed 2 more since the last such line)",
        "logged by a",
    ]


def test_events_of_a_peer_are_logged_once_for_its_host(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    often = RateLimited(logging.getLogger("spark_rocket.x"), 10.0, lambda: now[0])
    for moment, address in ((0, "10.0.0.1:1"), (1, "10.0.0.1:2"), (1, "[::1]:2"), (10, "10.0.0.1:3")):
        now[0] = moment
        often.peer(address, "closed %s", address)
    assert [one.getMessage() for one in caplog.records] == [
        "closed 10.0.0.1:1",
        "closed [::1]:2",
        "closed 10.0.0.1:3 (suppressed 1 more since the last such line)",
    ]


def test_keys_are_bounded() -> None:
    often = RateLimited(logging.getLogger("spark_rocket.quiet"), 1e9)
    for number in range(3_000):
        often.log(logging.DEBUG, number, "x")
    assert len(often._logged) == 1_000


@pytest.mark.parametrize(
    "text",
    [
        'secretKey="s3cr3t s3cr3t"',
        "{'secret_key': 's3cr3t, s3cr3t'}",
        '{"secretKey":"s3cr3t\\"s3cr3t,s3cr3t"}',
        '"{\\"secretKey\\": \\"s3cr3t\\"}"',
        'password="s3cr3t',
        "Authorization: MQv2-HMAC-SHA1 Credential=s3cr3t, SignedHeaders=x-mq-date-time, Signature=s3cr3t",
        "{'AccessKey': 'k', 'Signature': 's3cr3t='}",
    ],
)
def test_a_secret_is_masked_to_its_end(text: str) -> None:
    assert "s3cr3t" not in mask(text)
    assert "******" in mask(text)
