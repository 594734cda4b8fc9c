"""``rocket store …``: arguments, output and exit status."""

from __future__ import annotations

import errno
import json
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.cli.text import Bar
from spark_rocket.common.units import moment_text, size_text
from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.store import StoreConfig
from tests import golden
from tests.cli.conftest import Run
from tests.store.helpers import opened, put, small

CONF = "mappedFileSizeCommitLog=1048576\nmaxHashSlotNum=500\nmaxIndexNum=1000\nmappedFileSizeConsumeQueue=2000\n"
VERBS = ("check", "dump", "rebuild", "stats")
Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return golden.extract_store("clean", tmp_path)


@pytest.fixture
def conf(tmp_path: Path) -> str:
    (tmp_path / "broker.conf").write_text(CONF)
    return str(tmp_path / "broker.conf")


@pytest.fixture
def rocket(run: Run) -> Run:
    return lambda *arguments: run("store", *arguments)


def damage(store: Path, at: int = 100) -> None:
    with sorted((store / "commitlog").iterdir())[0].open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 8)


def snapshot(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- every verb -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb: str, rocket: Run) -> None:
    said = rocket(verb, "--help")
    assert (said.status, said.out.startswith(f"Usage: rocket store {verb}")) == (0, True)
    assert f"Example: rocket store {verb} " in said.out


@pytest.mark.parametrize("verb", VERBS)
def test_invalid_directories(verb: str, tmp_path: Path, rocket: Run) -> None:
    (tmp_path / "file").write_text("")
    for name, why in (("nowhere", "it does not exist"), ("", "commitlog"), ("file", "it is a file")):
        said = rocket(verb, tmp_path / name)
        assert "invalid store directory" in said.error
        assert said.out == ""
        assert why in said.error


@pytest.mark.live
def test_a_full_output_disk_is_reported(store: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "spark_rocket.cli", "store", "dump", str(store)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "rocket: cannot write the output: no space left on its disk.\n"


@pytest.mark.parametrize("arguments", [["stats"], ["stats", "--scan"], ["dump"], ["dump", "--by-queue"], ["check"]])
@pytest.mark.parametrize("size", [0, 300_000, 300_001])
def test_a_truncated_log_file(store: Path, conf: str, arguments: list[str], size: int, rocket: Run) -> None:
    path = sorted((store / "commitlog").iterdir())[1]
    os.truncate(path, size)
    said = rocket(arguments[0], store, "-c", conf, *arguments[1:])
    assert said.status == 1
    assert f"{path}: it has {size} bytes" in said.out + said.err
    assert len(said.out.splitlines()) > 5


@pytest.mark.parametrize("verb", VERBS)
def test_a_running_store_is_refused_in_one_line(verb: str, tmp_path: Path, rocket: Run) -> None:
    config = small(tmp_path / "store")
    opened_store = opened(config)
    said = rocket(verb, config.store_path)
    assert said.status == 1
    assert said.out == ""
    in_use = f"The store directory {config.store_path} is in use by process {os.getpid()}"
    assert said.err == f"rocket: {in_use}. Stop its broker first.\n"
    opened_store.close()


@pytest.mark.live
@pytest.mark.parametrize("verb", VERBS)
def test_a_java_brokers_store_is_refused(verb: str, store: Path, conf: str, rocket: Run) -> None:
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0); "
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(store / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        assert rocket(verb, store, "-c", conf).failed("is in use")
        holder.kill()


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--json", "--all"],
        ["dump", "--by-queue"],
        ["dump"],
        ["rebuild", "--dry-run"],
        ["stats"],
        ["stats", "--scan"],
    ],
)
@pytest.mark.parametrize("name", ["clean", "killed"])
def test_reading_commands_change_nothing(
    name: Any, arguments: list[str], tmp_path: Path, conf: str, rocket: Run
) -> None:
    store = golden.extract_store(name, tmp_path)
    before = snapshot(store)
    for directory in (store, tmp_path):  # the store, and the directory that `rocket up --data` names
        said = rocket(arguments[0], directory, "-c", conf, *arguments[1:])
        assert said.status == (name == "killed" and arguments[0] == "check")
    assert snapshot(store) == before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["check"],
        ["dump", "d", "--limit", "0"],
        ["dump", "d", "--queue", "-1"],
        ["dump", "d", "--since", "yesterday"],
        ["dump", "d", "--at", "x"],
        ["rebuild", "d", "--json"],
    ],
)
def test_an_invalid_command_line(arguments: list[str], rocket: Run) -> None:
    assert rocket(*arguments).failed("Usage: rocket", status=2)


def test_a_broken_configuration(store: Path, tmp_path: Path, rocket: Run) -> None:
    (tmp_path / "bad.conf").write_text("mappedFileSizeCommitLog=much\n")
    assert rocket("check", store, "-c", tmp_path / "bad.conf").failed("bad.conf, line 1")
    assert rocket("rebuild", store, "-c", tmp_path / "no.conf").failed(
        "no.conf: file not found. Give the file that the broker is started with"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupt_is_reported(
    verb: str, store: Path, conf: str, monkeypatch: pytest.MonkeyPatch, rocket: Run
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = snapshot(store)
    monkeypatch.setattr("spark_rocket.store.read_only.ReadOnlyStore.queue", interrupt)
    monkeypatch.setattr("spark_rocket.store.log.record_scan.LogScan.__iter__", interrupt)
    assert rocket(verb, store, "-c", conf).failed("interrupted before the end")
    assert snapshot(store) == before


# --- check ------------------------------------------------------------------------------------------------------


def test_check_shows_some_of_many_problems(store: Path, conf: str, rocket: Run) -> None:
    for path in (store / "consumequeue" / "GoldenA").glob("*/*"):
        path.write_bytes(bytes(reversed(path.read_bytes())))
    for i in range(14):
        (store / "consumequeue" / "GoldenB" / f"x{i}").mkdir()
    (store / "consumequeue_ext").mkdir()
    said = rocket("check", store, "-c", conf)
    assert said.status == 1
    lines = said.out.splitlines()
    for text in (f"{store}: ", "14 files", "entry"):
        assert text in lines[-1]
    assert any(line.startswith("note: ") and "consumequeue_ext" in line and "not checked" in line for line in lines)
    assert "… and 4 more; use --all" in lines
    assert len(rocket("check", store, "-c", conf, "--all").out.splitlines()) > len(lines)
    said = rocket("check", store, "-c", conf, "--json")
    assert said.status == 1
    problems = said.json_lines
    assert {"kind", "path", "text", "offset"} == set(problems[0])
    kinds = [problem["kind"] for problem in problems]
    assert kinds[:14] == ["files"] * 14
    assert "entry" in kinds


def test_check_requests_the_configuration_if_needed(store: Path, rocket: Run) -> None:
    assert rocket("check", store).printed(
        f"note: {store}/index: not checked: ", "give the broker's configuration with -c broker.conf"
    )


def test_check_prints_each_remedy_once(store: Path, conf: str, rocket: Run) -> None:
    damage(store)
    for path in (store / "consumequeue" / "GoldenA").glob("*/*"):
        path.write_bytes(bytes(reversed(path.read_bytes())))
    (store / "lock").write_text("key")
    said = rocket("check", store, "-c", conf)
    assert said.status == 1
    lock, record, entry = [line for line in said.out.splitlines() if line.startswith("remedy: ")]
    assert lock == "remedy: lock: Start and stop its broker, which fixes this."
    assert record.startswith("remedy: record, hidden, offsets: Restore the file from a copy. Without one, ")
    assert f"`rocket store rebuild {store} --skip-damage`" in record
    assert f"entry: `rocket store rebuild {store}` rebuilds" in entry.replace("tail, entry", "entry")


def test_unreadable_files_are_named_and_the_rest_checked(
    store: Path, conf: str, monkeypatch: pytest.MonkeyPatch, rocket: Run
) -> None:
    """Root can read everything, so the system calls are replaced."""
    forbidden = {
        store / "commitlog" / f"{1 << 20:020d}",
        store / "consumequeue" / "GoldenB",
        store / "consumequeue" / "GoldenA" / "1" / f"{0:020d}",
        store / "index",
        store / "checkpoint",
    }

    def refusing(function: Any) -> Any:
        def call(path: Any, *arguments: Any, **more: Any) -> Any:
            if not isinstance(path, int) and Path(path) in forbidden:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return function(path, *arguments, **more)

        return call

    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in forbidden and access(path, mode))
    for name in ("open", "scandir", "listdir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    monkeypatch.setattr(Path, "read_bytes", refusing(Path.read_bytes))
    said = rocket("check", store, "-c", conf)
    assert said.status == 1
    for path in forbidden:
        assert f"{path}: it cannot be read: Permission denied" in said.out
    assert "Run this as the user who owns the store." in said.out
    for arguments in (["stats"], ["dump", "--by-queue"], ["dump"]):
        read = rocket(arguments[0], store, "-c", conf, *arguments[1:])
        assert read.status == 1
        assert f"{store / 'commitlog' / f'{1 << 20:020d}'}: it cannot be read: Permission denied" in read.err
        assert len(read.out.splitlines()) > 40
    assert rocket("rebuild", store, "-c", conf, "--skip-damage").failed("it cannot be read: Permission denied")


# --- dump -------------------------------------------------------------------------------------------------------


def test_dump_as_text(store: Path, rocket: Run) -> None:
    said = rocket("dump", store, "--topic", "GoldenA", "-q", 1, "--from-offset", 3, "--to-offset", 5)
    head, *lines = said.out.splitlines()
    assert head.split()[0] == "stored"
    assert ["GoldenA, 1, 3" in lines[0], "GoldenA, 1, 5" in lines[2], len(lines)] == [True, True, 3]
    assert "golden A body" in lines[0]
    said = rocket("dump", store, "-t", "GoldenB")
    assert said.status == 0
    text = said.out
    assert "你好, RocketMQ – žluťoučký kůň 🐎" in text
    assert "0x60b420bb" in text


def test_dump_as_json(store: Path, rocket: Run) -> None:
    said = rocket("dump", store, "--json")
    assert said.status == 0
    lines = said.json_lines
    assert len(lines) == 1239
    assert {line["msgId"] for line in golden.expected("clean")} <= {line["msgId"] for line in lines}
    key = next(line for line in golden.expected("clean") if line["keys"])["keys"].split()[0]
    said = rocket("dump", store, "--json", "--key", key, "-n", 1)
    assert said.status == 0
    assert key in json.loads(said.out)["properties"]["KEYS"].split()
    moment = lines[500]["storeTimestamp"]
    said = rocket("dump", store, "--json", "--since", moment, "--until", moment)
    assert said.status == 0
    assert json.loads(said.out.splitlines()[0])["storeTimestamp"] == moment
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment // 1000 + 1))
    said = rocket("dump", store, "--json", "--since", text, "-n", 1)
    assert said.status == 0
    assert json.loads(said.out)["storeTimestamp"] >= (moment // 1000 + 1) * 1000


def test_dump_continues_after_damage_and_reports_it(store: Path, rocket: Run) -> None:
    damage(store)
    said = rocket("dump", store, "--json")
    assert said.status == 1
    assert len(said.out.splitlines()) == 1238
    assert said.err.startswith(f"rocket: damaged: {store}/commitlog/{0:020d} at byte 0 (offset 0), 247 bytes: ")


def test_dump_of_a_missing_queue(store: Path, rocket: Run) -> None:
    said = rocket("dump", store, "-t", "None")
    assert (said.status, "no messages found. There is no queue of None. Topics here: " in said.err) == (0, True)
    said = rocket("dump", store, "-t", "GoldenA", "-q", 99)
    assert (said.status, "There is no queue 99. Queues here: 0, 1, 2, 3." in said.err) == (0, True)
    said = rocket("dump", store, "-t", "GoldenA", "--key", "missing")
    assert (said.status, said.err) == (0, "rocket: no messages found.\n")
    assert rocket("dump", store, "-t", "None", "--by-queue").failed("rocket store rebuild")


def test_dump_names_a_queue_with_damaged_files(store: Path, rocket: Run) -> None:
    path = store / "consumequeue" / "GoldenA" / "1" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:100])
    said = rocket("dump", store, "-t", "GoldenA", "--by-queue", "--json")
    assert said.status == 1
    assert len(said.out.splitlines()) == 750
    assert f"files: {path}: it has 100 bytes" in said.err


@pytest.mark.live
def test_a_closed_output_pipe(store: Path) -> None:
    command = f"{sys.executable} -m spark_rocket.cli store dump {store} --json | head -2"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


# --- rebuild ----------------------------------------------------------------------------------------------------


def test_rebuild_announces_and_rebuilds(store: Path, conf: str, rocket: Run) -> None:
    before = snapshot(store / "consumequeue")
    for path in before:
        path.write_bytes(bytes(len(before[path])))
    assert rocket("rebuild", store, "-c", conf, "--dry-run").printed(
        "consume queues would be rebuilt: 32 with 1,239 entries, files of 2,000 bytes",
        "index would be rebuilt: 2,669 keys, 500 slots and 1,000 keys per file",
        "Nothing was changed",
    )
    assert rocket("rebuild", store, "-c", conf).printed("consume queues rebuilt: 32")
    assert {path: raw for path, raw in snapshot(store / "consumequeue").items() if any(raw)} == {
        path: raw for path, raw in before.items() if any(raw)
    }
    assert rocket("check", store, "-c", conf).status == 0


def test_the_printed_remedy_of_a_failed_start_works(tmp_path: Path, rocket: Run) -> None:
    """A store with default sizes, of which one queue file and the index file were cut off."""
    config = StoreConfig(tmp_path / "store")
    store = opened(config)
    for queue_id in range(4):
        put(store, "orders", queue_id, b"x", b"UNIQ_KEY\x01u%d" % queue_id)
    store.close()
    cut = config.consume_queue_path / "orders" / "1" / f"{0:020d}", next(config.index_path.iterdir())
    for path in cut:
        os.truncate(path, 5_000)
        with pytest.raises(StoreCorruptError, match="has 5000 bytes") as error:
            opened(config)
        command = error.value.remedy.split("`")[1]
        assert command == f"rocket store rebuild {config.store_path}"
        assert rocket("rebuild", command.removeprefix("rocket store rebuild ")).status == 0
    opened(config).close()
    assert rocket("check", config.store_path).status == 0


def test_rebuild_refuses_damage_and_unknown_sizes(store: Path, conf: str, rocket: Run) -> None:
    assert rocket("rebuild", store).failed(
        f"Give the broker's configuration: `rocket store rebuild {store} -c broker.conf`"
    )
    damage(store)
    before = snapshot(store)
    error = rocket("rebuild", store, "-c", conf).error
    assert "at byte 0 (offset 0), 247 bytes" in error
    assert "--skip-damage" in error
    assert snapshot(store) == before
    assert rocket("rebuild", store, "-c", conf, "--skip-damage").failed("GoldenA, queue 0: message 0 is lost")


# --- stats ------------------------------------------------------------------------------------------------------


def test_stats_as_text(store: Path, conf: str, rocket: Run) -> None:
    said = rocket("stats", store, "-c", conf)
    assert said.printed("2,669 entries", "3 files of 3.0 MiB, ")
    assert said.out.splitlines()[1].split()[:4] == ["GoldenB", "all", "4", "42"]  # the most bytes come first
    said = rocket("stats", store, "--topic", "GoldenTx", "--scan")
    assert said.printed("source of messages and bytes: the log\n")
    assert "GoldenA" not in said.out
    assert rocket("stats", store, "-t", "None").failed("There is no queue of None. Topics here: ")


def test_stats_without_consume_queues(store: Path, conf: str, rocket: Run) -> None:
    shutil.rmtree(store / "consumequeue")
    assert rocket("stats", store, "-c", conf).printed("log offsets     0 to ?: the consume queues are empty")
    assert rocket("stats", store, "-c", conf, "--json").json["logMaxOffset"] == -1


def test_stats_as_json(store: Path, conf: str, rocket: Run) -> None:
    *queues, totals = rocket("stats", store, "-c", conf, "--json").json_lines
    assert sum(queue["messages"] for queue in queues) == 1239
    assert {"topic", "queueId", "minOffset", "maxOffset", "firstStoreTime", "bytes"} <= set(queues[0])
    assert totals["log"] == {"count": 3, "size": 3 << 20, "onDisk": totals["log"]["onDisk"]}
    assert totals["indexEntries"] == 2669


def test_an_empty_store(tmp_path: Path, rocket: Run) -> None:
    opened(small(tmp_path / "store")).close()
    for verb in ("check", "dump", "stats"):
        assert rocket(verb, tmp_path).status == 0
    assert rocket("rebuild", tmp_path).failed("queues cannot be rebuilt without a log")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_terminal_is_not_driven_by_stored_messages(
    tmp_path: Path, rocket: Run, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    config = small(tmp_path / "store")
    opened_store = opened(config)
    put(opened_store, "orders", 0, b"body", encode_properties({"TAGS": "\x9b31m"}))
    opened_store.close()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said = rocket("dump", config.store_path, *form)
    assert said.status == 0
    assert "\\u009b31m" in said.out
    assert "\x9b" not in said.out


# --- progress ---------------------------------------------------------------------------------------------------


def test_a_terminal_gets_a_progress_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        now = iter(range(100))
        monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
        with Bar() as bar:
            bar(1 << 20, 2 << 20)  # too short for a progress bar
            bar(1 << 30, 2 << 30)
        said = ""
        while said.count("\x1b[K") < 2:  # the line, and its end
            said += os.read(leader, 4096).decode()
    os.close(leader)
    assert "50 %  1.0 GiB of 2.0 GiB, 512.0 MiB/s, 2 s left" in said
    assert said.endswith("\r\x1b[K")


def test_a_file_gets_no_progress_bar(tmp_path: Path, capsys: Capsys) -> None:
    config = small(tmp_path / "store")
    store = opened(config)
    put(store, "T", 0, b"x")
    store.close()
    with Bar() as bar:
        bar(1 << 30, 2 << 30)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 30, "3.0 GiB"), (5 << 50, "5120.0 TiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


def test_times_outside_the_calendar() -> None:
    assert moment_text(1 << 62) == str(1 << 62)
    assert moment_text(-1) == "-"
