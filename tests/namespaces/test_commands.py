"""Every command of ``rocket`` in a namespace: requests have full names, and outputs have short ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from spark_rocket.datasource.stream_offsets import StreamOffset
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run, run
from tests.kit.recording import recording, text_of
from tests.namespaces.world import BARE, GROUP, INSTANCE, TOPIC, fill, full

pytestmark = pytest.mark.live

__all__ = ["run"]

T, G = TOPIC, GROUP
COMMANDS: dict[str, str] = {
    "acl allow": f"alice Topic:{T} Pub",
    "acl delete": "alice --yes",
    "acl deny": f"alice Group:{G} Sub",
    "acl list": "",
    "acl revoke": f"alice Topic:{T} --yes",
    "acl show": "alice",
    "acl update": f"alice --secret s3cr3t-s3cr3t --topic {T}=PUB --group {G}=SUB --yes",
    "acl white-list": "127.0.0.1 --yes",
    "bench consume": f"{T} --count 1 --seconds 1",
    "bench send": f"{T} --count 1 --seconds 1",
    "broker clean": "broker-a topics --yes",
    "broker config": "broker-a",
    "broker drain": "broker-a --yes --quiet 1",
    "broker ha": "broker-a",
    "broker runtime": "broker-a",
    "broker timers": "broker-a",
    "broker undrain": "broker-a",
    "cluster list": "",
    "cluster producers": "zshop",
    "dlq list": G,
    "dlq resend": f"{G} --all --yes",
    "doctor": f"-t {T} -g {G}",
    "group create": "zlate",
    "group delete": "zlate --yes",
    "group lag": f"{G} --topic {T}",
    "group list": "",
    "group member": G,
    "group show": G,
    "message export": f"-t {T} FILE.jsonl",
    "message get": "OFFSET_ID",
    "message query-id": f"{T} ID",
    "message query-key": f"{T} k",
    "message resend": f"{T} ID --group {G} --yes",
    "message send": f"{T} x --group zshop",
    "message tail": f"{T} --from earliest --no-follow --long",
    "message trace": f"ID --trace-topic {T}",
    "namesrv config": "",
    "namesrv kv delete": "ORDER_TOPIC_CONFIG zorders --yes",
    "namesrv kv get": "ORDER_TOPIC_CONFIG zorders",
    "namesrv kv list": "ORDER_TOPIC_CONFIG",
    "namesrv kv set": "ORDER_TOPIC_CONFIG zorders broker-a:1",
    "offsets diff": f"CHECKPOINT -g {G}",
    "offsets export": f"-g {G} -t {T} -o FILE.json",
    "offsets import": f"FILE.json -g {G} --yes",
    "offsets ledger": "",
    "offsets preview": f"-t {T} --earliest",
    "offsets reset": f"-g {G} -t {T} --earliest --yes",
    "offsets show": "CHECKPOINT",
    "offsets sinks": "",
    "queue dump": f"{T} broker-a:0 --entries --group {G}",
    "topic create": "znew",
    "topic delete": "znew --yes",
    "topic list": "",
    "topic route": T,
    "topic show": T,
    "topic stats": T,
    "topic update": f"{T} --queues 2",
}
"""The arguments of each command. Capitals stand for files and for ids of the message."""
SERVERS = {"console"}
FULL_NAMES = {"doctor", "acl allow", "acl deny", "acl revoke", "acl update"}
"""Accounts have the names on the wire, which administrators of the cluster use, and findings those of accounts."""
CHANGING = {
    "bench send", "bench consume", "broker runtime", "group create", "group delete", "topic delete", "topic create"
}  # fmt: skip
"""Their outputs differ between two runs."""


def commands() -> Iterator[tuple[str, click.Command]]:
    def below(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from below(inner, click.Context(inner, context, name))
        else:
            yield context.command_path, command

    rocket = import_module("spark_rocket.cli.main").rocket
    for path, command in below(rocket, click.Context(rocket)):
        yield path.strip(), command


def test_every_command_with_a_namespace_is_here() -> None:
    named = {path for path, command in commands() if any("--namespace" in each.opts for each in command.params)}
    assert named - SERVERS == set(COMMANDS)


@pytest.fixture(scope="module")
def requests() -> Iterator[list[RemotingCommand]]:
    found: list[RemotingCommand] = []
    with recording(lambda request, _: found.append(request)):
        yield found


@pytest.fixture(scope="module")
def cluster(requests: list[RemotingCommand]) -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        yield running


@pytest.fixture(scope="module")
def files(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    offset = StreamOffset({MessageQueue(full(TOPIC), "broker-a", 0): 1}, {MessageQueue(full(TOPIC), "broker-a", 0): 0})
    (directory / "checkpoint" / "offsets").mkdir(parents=True)
    lines = ["v1", "{}", json.dumps(offset.to_json())]
    (directory / "checkpoint" / "offsets" / "0").write_text("\n".join(lines))
    return directory


def arguments(command: str, files: Path, message: MessageExt, named: Callable[[str], str]) -> list[str]:
    stands_for = {
        "ID": message.msg_id, "OFFSET_ID": message.offset_msg_id, "CHECKPOINT": str(files / "checkpoint"),
        "FILE.jsonl": str(files / "rows.jsonl"), "FILE.json": str(files / "offsets.json"),
    }  # fmt: skip
    words = [stands_for.get(word, word) for word in COMMANDS[command].split()]
    return [*command.split(), *(re.sub(r"\bz[a-z]+$", lambda name: named(name[0]), word) for word in words)]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(
    command: str, cluster: LocalCluster, files: Path, run: Run, requests: list[RemotingCommand],
) -> None:  # fmt: skip
    """With short names, and with full ones: it does the same, and may show a name as it was written."""
    shown: list[str] = []
    for named in (str, full):
        message = fill(cluster)
        requests.clear()
        found = run(*arguments(command, files, message, named), "-n", cluster.name_server, "--namespace", INSTANCE)
        assert found.status in (0, 1), found.err  # the arguments are valid
        assert [text_of(each) for each in requests if BARE.search(text_of(each))] == []
        shown.append(f"{found.status} {found.out} {found.err}")
    assert command in FULL_NAMES or INSTANCE not in shown[0]
    same = [re.sub(r"[0-9A-F]{16,}|[\d:.,]+|\s+", "0", text.replace(f"{INSTANCE}%", "")) for text in shown]
    assert command in CHANGING or same[0] == same[1]
