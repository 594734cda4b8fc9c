"""Files that users name: read with a bound, whatever reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.arguments import text_of
from spark_rocket.cli.commands.message import _bodies
from spark_rocket.common.files import MAX_READ_BYTES, read_file
from spark_rocket.console.settings import read_users
from spark_rocket.datasource.options.bodies import avro_schema
from spark_rocket.errors import ConfigError, OptionError
from spark_rocket.remoting.tls.settings import TlsSettings

READERS: dict[str, Callable[[Path], Any]] = {
    "a schema": lambda path: avro_schema("avroSchema", str(path)),
    "a file of the command line": text_of,
    "a body": lambda path: _bodies(None, path, None).__enter__(),
    "settings": BrokerConfig.from_file,
    "users of the console": read_users,
    "settings of TLS": lambda path: TlsSettings.of({"tls.config.file": str(path)}),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_without_an_end_is_not_read(tmp_path: Path, reader: str) -> None:
    """Like /dev/zero, whose content would fill the memory."""
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(MAX_READ_BYTES + 1)
    with pytest.raises((OSError, ConfigError, OptionError), match="larger than 64 MiB"):
        READERS[reader](tmp_path / "zeros")


def test_the_largest_file(tmp_path: Path) -> None:
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(MAX_READ_BYTES)
    assert len(read_file(tmp_path / "zeros")) == MAX_READ_BYTES
