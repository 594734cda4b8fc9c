"""The ``rocket`` command from a user's view: processes, signals, exit statuses, and errors of one clear line."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_rocket.broker.addresses import advertised_ip
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli import main
from spark_rocket.cli.servers.serve_up import snippet
from spark_rocket.client import Admin
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing.network import Network
from tests.broker.wire import Wire
from tests.cli.conftest import Run
from tests.kit.ports import listening
from tests.kit.waiting import until

pytestmark = pytest.mark.live

PORTS = ["--nameserver-port", "0", "--broker-port", "0", "--grpc-port", "0", "--no-console"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "spark_rocket.cli", *map(str, arguments)]


@contextmanager
def started(
    *arguments: object, last: str, cwd: Path | None = None, timeout: float = 60.0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that has printed its ``last`` line, and its output up to that line.

    Fails with the output so far if the process ends before that line, or has not printed it after ``timeout`` seconds.
    """
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
    limit = threading.Timer(timeout, process.kill)  # ends the output, and thereby the loop below
    limit.start()
    try:
        assert process.stdout is not None
        output = ""
        while last not in output:
            line = process.stdout.readline()
            if not line:
                _, errors = process.communicate(timeout=10)
                pytest.fail(f"ended or timed out ({timeout:g} s) before {last!r}: {output}{errors}")
            output += line
        limit.cancel()
        yield process, output
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    """SIGHUP ends the processes of the tests, even if the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_missing_line_fails_with_the_output(tmp_path: Path) -> None:
    with (
        pytest.raises(pytest.fail.Exception, match=r"timed out .* before 'never printed'"),
        started("up", *PORTS, last="never printed", cwd=tmp_path, timeout=0.5),
    ):
        pass


# --- up ---------------------------------------------------------------------------------------------------------


def test_up_prints_its_addresses_serves_and_stops_cleanly(run: Run, tmp_path: Path) -> None:
    with started("up", *PORTS, last="Press Ctrl-C to stop.", cwd=tmp_path) as (process, said):
        name_server = found(r"name server +(127\.0\.0\.1:\d+)", said)
        broker = found(r"broker +(127\.0\.0\.1:\d+)", said)
        assert f'.option("nameServer", "{name_server}")' in said
        assert len([line for line in said.splitlines() if "spark" in line and line.startswith("  ")]) == 3
        with RemotingClient() as client:
            assert Wire(client, broker).send("Hello", b"rocket").code == ResponseCode.SUCCESS
            route = Wire(client, name_server).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Hello")
            assert broker in bytes(route.body).decode()
        process.terminate()
        rest, errors = process.communicate(timeout=60)
        stopped = f"Stopped. The data is in {tmp_path / 'rocket-data'}.\n"
        assert (process.returncode, rest, errors) == (0, stopped, "")
    assert (tmp_path / "rocket-data" / "store" / "commitlog").is_dir()
    assert not (tmp_path / "rocket-data" / "store" / "abort").exists()
    assert run("store", "check", tmp_path / "rocket-data").status == 0


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_stop_a_server_cleanly_too(tmp_path: Path, stop: signal.Signals) -> None:
    with started("namesrv", "--port", 0, "--data", tmp_path, last="name server on") as (process, _):
        process.send_signal(stop)
        assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)


def test_up_ephemeral_removes_its_data(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={tmp_path / 'log'}\n", encoding="utf-8")
    arguments = ["up", "--ephemeral", "-c", conf, *PORTS]
    with started(*arguments, last="Press Ctrl-C to stop.", cwd=tmp_path) as (process, said):
        data = Path(found(r"data +(\S+)", said))
        assert data.is_dir()
        process.terminate()
        assert process.wait(60) == 0
    assert not data.exists()
    assert list(tmp_path.iterdir()) == [conf]


def test_up_reads_broker_conf_and_the_command_line_overrides_it(run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=mine\nlistenPort=1\nstorePathRootDir={tmp_path / 'elsewhere'}\n")
    with started("up", "-c", conf, *PORTS, last="Press Ctrl-C to stop.", cwd=tmp_path) as (_, said):
        assert "(mine of DefaultCluster)" in said
        assert (tmp_path / "elsewhere" / "lock").exists()
    assert run("store", "check", tmp_path / "elsewhere").status == 1  # killed: its abort file is there
    with started("up", "-c", conf, *PORTS, last="Press Ctrl-C to stop.") as (_, said):
        assert f"{tmp_path / 'elsewhere'} was not closed cleanly: recovering it" in said


def test_up_on_all_interfaces_prints_a_warning(tmp_path: Path) -> None:
    ip = advertised_ip(BrokerConfig(bind_address="0.0.0.0"))  # 127.0.0.1 on a machine without a network
    with started("up", "--ephemeral", "--host", "0.0.0.0", *PORTS, last="Press Ctrl-C to stop.") as (_, said):
        assert "OPEN TO EVERYONE" in said
        name_server = found(r"name server +(\S+)", said)
        assert name_server.startswith(f"{ip}:")
        assert found(r"gRPC +(\S+):", said) == found(r"broker +(\S+):", said) == ip
        assert f'"nameServer", "{name_server}"' in said  # other machines can run the printed example
        with Admin(name_server) as admin:
            assert admin.cluster_info().broker_addr_table


@pytest.mark.parametrize("more", [[], ["--brokers", "2"]], ids=["one", "two"])
def test_printed_addresses_are_the_advertised_ones(tmp_path: Path, more: list[str]) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerIP1=127.0.0.2\n")
    arguments = ["up", *more, "-c", conf, "--data", tmp_path / "d", "--host", "0.0.0.0", "--no-metrics", *PORTS]
    with started(*arguments, last="Press Ctrl-C to stop.") as (_, said):
        assert set(re.findall(r"(\d+\.\d+\.\d+\.\d+):\d+", said)) == {"127.0.0.2"}
        assert found(r"gRPC +(\S+):", said) == "127.0.0.2"


def test_rocket_namesrv_prints_the_machines_address(tmp_path: Path) -> None:
    ip = advertised_ip(BrokerConfig(bind_address="0.0.0.0"))
    arguments = ["namesrv", "--host", "0.0.0.0", "--port", 0, "--data", tmp_path]
    with started(*arguments, last="OPEN") as (_, said):
        assert found(r"name server on (\S+):", said) == ip


def test_up_reports_to_its_parent_and_exits_with_it(tmp_path: Path) -> None:
    ready_read, ready_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    descriptors = (ready_write, lifeline_read)
    process = subprocess.Popen(
        command("up", "--data", tmp_path, *PORTS, "--ready-fd", ready_write, "--lifeline-fd", lifeline_read),
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
    )
    for descriptor in descriptors:
        os.close(descriptor)
    with os.fdopen(ready_read) as ready:
        facts = json.loads(ready.read())
    assert set(facts) - {"metrics", "grpcMetrics"} == {"nameServer", "broker", "grpc"}  # whose ports may be in use
    os.close(lifeline_write)
    assert process.wait(60) == 0


def test_sighup_is_ignored_under_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a child inherits that
    try:
        with started("namesrv", "--port", 0, "--data", tmp_path, last="name server on") as (process, said):
            address = found(r"on (127\.0\.0\.1:\d+)", said)
            process.send_signal(signal.SIGHUP)
            with RemotingClient() as client:
                for _ in range(100):  # a server that stops closes its connections
                    assert Wire(client, address).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T").code != 0
            process.terminate()
            assert process.wait(60) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux lets one look")
@pytest.mark.parametrize(("what", "last"), [("namesrv", "name server on"), ("broker", "store  ")])
def test_the_limit_of_open_files_is_raised(tmp_path: Path, what: str, last: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))  # a child inherits that
    try:
        with started(what, "--port", 0, "--data", tmp_path, last=last) as (process, _):
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("settings", "asked_for"),
    [
        ({}, []),
        ({"aclEnable": "true"}, ["accessKey", "secretKey"]),
        ({"tls.server.mode": "permissive", "tls.test.mode.enable": "true"}, []),
        ({"tls.server.mode": "enforcing", "tls.test.mode.enable": "true"}, ["tls", "tlsCaFile"]),
    ],
)
def test_the_printed_example_has_credentials_and_tls(settings: dict[str, object], asked_for: list[str]) -> None:
    lines = snippet("127.0.0.1:9876", BrokerConfig.from_properties(settings))
    for name in ("accessKey", "secretKey", "tls", "tlsCaFile"):
        assert lines.count(f'.option("{name}", ') == (2 if name in asked_for else 0)
    assert lines.count('.option("nameServer", "127.0.0.1:9876")') == 2
    compile("\n".join(line.strip() for line in lines.splitlines()), "snippet", "exec")


# --- rocket namesrv and rocket broker ---------------------------------------------------------------------------


def test_rocket_namesrv_and_rocket_broker(tmp_path: Path) -> None:
    with started("namesrv", "--port", 0, "--data", tmp_path / "ns", last="name server on") as (namesrv, said):
        address = found(r"on (127\.0\.0\.1:\d+)", said)
        arguments = ["broker", "-n", address, "--port", 0, "--data", tmp_path / "b"]
        with started(*arguments, last="store  ") as (broker, said), RemotingClient() as client:
            at = found(r"on (127\.0\.0\.1:\d+)", said)
            assert Wire(client, at).send("T", b"x").code == ResponseCode.SUCCESS
            assert Wire(client, address).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T").code == 0
            broker.terminate()
            assert broker.wait(60) == 0
            gone = Wire(client, address).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
            assert gone.code == ResponseCode.TOPIC_NOT_EXIST
        namesrv.terminate()
        assert namesrv.wait(60) == 0


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux lets one look")
def test_ports_of_rocket_namesrv_and_rocket_broker(tmp_path: Path) -> None:
    """Without gRPC and metrics, several brokers on a machine need no further ports."""
    network = Network()
    try:
        port = network.reserve(4) + 2
        with started("namesrv", "--port", 0, "--data", tmp_path / "ns", last="name server on") as (process, said):
            assert listening(process.pid) == {int(found(r"on 127\.0\.0\.1:(\d+)", said))}
        with started("broker", "--port", port, "--data", tmp_path / "b", last="store  ") as (process, _):
            assert listening(process.pid) == {port - 2, port, port + 1}
        arguments = ["broker", "--port", port, "--data", tmp_path / "b", "--metrics-port", 0]
        with started(*arguments, last="store  ") as (process, said):
            asked = int(found(r"metrics +\S*127\.0\.0\.1:(\d+)", said))
            assert listening(process.pid) == {port - 2, port, port + 1, asked}
    finally:
        network.close()


# --- failed starts ----------------------------------------------------------------------------------------------


def test_a_port_in_use(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = run("up", "--data", tmp_path, "--nameserver-port", port, "--broker-port", 0).error
        assert f"127.0.0.1:{port}" in line
        assert "port is in use" in line
        assert "rocket up --nameserver-port" in line
        line = run("up", "--data", tmp_path, "--nameserver-port", 0, "--broker-port", port).error
        assert f"broker cannot listen on 127.0.0.1:{port}: the port is in use" in line
        line = run("up", "--data", tmp_path, *PORTS, "--grpc-port", port).error
        assert f"gRPC endpoint cannot listen on 127.0.0.1:{port}" in line
        assert "--grpc-port (0 selects a free one)" in line


def test_a_directory_in_use(run: Run, tmp_path: Path) -> None:
    with started("up", "--data", tmp_path, *PORTS, last="Press Ctrl-C to stop."):
        said = run("up", "--data", tmp_path, *PORTS)
        assert str(tmp_path) in said.error
        assert "not closed cleanly" not in said.out  # its owner runs


def test_a_broken_broker_conf(run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\n\nlistenPort=ten\n")
    line = run("broker", "-c", conf).error
    assert f"{conf}, line 3: listenPort=ten: listenPort needs a whole number." in line
    assert "Cannot read the broker configuration" in run("up", "-c", tmp_path / "nowhere.conf").error


def test_a_broken_state_file(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text('{\n"topicConfigTable":{\n"T":{"perm":6 "order":false}}}')
    line = run("up", "--data", tmp_path, *PORTS).error
    assert "topics.json, line 3: " in line
    assert "Repair topics.json" in line


def test_a_data_directory_that_cannot_be_created(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = run("up", "--data", tmp_path / "file", *PORTS).error
    assert "file" in line


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["up", "--nameserver-port", "70000"],
        ["up", "--nameserver-port", "x"],
        ["up", "--data", "d", "--ephemeral"],
        ["store"],
    ],
)
def test_an_invalid_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "Usage: rocket" in capsys.readouterr().err


def test_a_package_for_a_missing_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["package", "-o", str(tmp_path / "none" / "x.zip")]) == 1
    assert f"directory {tmp_path / 'none'} does not exist" in capsys.readouterr().err


def test_a_package_that_would_replace_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["package", "-o", str(tmp_path)]) == 1
    assert f"Name a file: -o {tmp_path / 'spark_rocket.zip'}" in capsys.readouterr().err
    assert main(["package", "-o", "/"]) == 1
    assert not tmp_path.with_name(tmp_path.name + ".new").exists()


def test_a_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    """Like ``| head``: the pipe is closed before the first write."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "spark_rocket.cli", "package", "-o", str(tmp_path / "x.zip")]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_standard_streams_that_the_parent_has_closed(closed: int, tmp_path: Path) -> None:
    """A socket must not get the number of one: libuv aborts the process that closes it."""
    arguments = command("up", "--data", tmp_path, "--no-metrics", *PORTS)
    program = f"import os; os.close({closed}); os.execv({sys.executable!r}, {arguments!r})"
    places = [subprocess.DEVNULL if number == closed else subprocess.PIPE for number in range(3)]
    process = subprocess.Popen([sys.executable, "-c", program], stdin=places[0], stdout=places[1], stderr=places[2])
    try:
        until((tmp_path / "store" / "lock").exists)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_verb_whose_standard_stream_is_closed(closed: int) -> None:
    def output(*arguments: str) -> tuple[int, bytes, bytes]:
        program = f"import os; os.close({closed}); os.execv({sys.executable!r}, {command(*arguments)!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    status, out, problems = output("help")  # a table
    assert (status, bool(out), problems) == (0, closed != 1, b"")
    status, out, problems = output("store", "check", "/no/such/store")
    assert (status, out, bool(problems)) == (1, b"", closed != 2)


def test_characters_that_the_terminal_does_not_have(name_server: str, run: Run) -> None:
    body = "ünï → 🎉"
    assert run("message", "send", "unicode", body, "-n", name_server).status == 0
    arguments = command("message", "tail", "unicode", "--from", "earliest", "--no-follow", "-n", name_server)
    environment = os.environ | {"PYTHONIOENCODING": "gbk", "PYTHONUTF8": "0"}
    for extra in ([], ["--json"]):
        done = subprocess.run([*arguments, *extra], capture_output=True, env=environment, timeout=60, check=True)
        text = done.stdout.decode("gbk")
        assert "→ \\ud83c\\udf89" in text
        if extra:
            assert json.loads(text)["body"] == body


# --- quick ------------------------------------------------------------------------------------------------------


def test_servers_import_no_heavy_modules() -> None:
    program = (
        "import sys, spark_rocket.cli.servers.serve_up, spark_rocket.testing.plugin\n"
        "print(sorted({'pyarrow', 'pandas', 'pyspark', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
