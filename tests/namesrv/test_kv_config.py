import json
from pathlib import Path

import pytest

from spark_rocket.errors import ConfigError
from spark_rocket.namesrv.kv_config import KVConfigManager


def test_values(tmp_path: Path) -> None:
    kv = KVConfigManager(tmp_path / "sub" / "kvConfig.json")
    kv.load()
    assert kv.get("n", "k") is None
    assert kv.namespace("n") is None
    kv.put("n", "k", "v")
    kv.put("n", "ключ", "значение")
    kv.put("m", "k", "w")
    assert kv.get("n", "k") == "v"
    assert kv.namespace("n") == {"k": "v", "ключ": "значение"}
    kv.delete("n", "k")
    kv.delete("n", "k")
    kv.delete("unknown", "k")
    kv.save()
    again = KVConfigManager(tmp_path / "sub" / "kvConfig.json")
    again.load()
    assert again.namespace("n") == {"ключ": "значение"}
    assert again.namespace("m") == {"k": "w"}


def test_the_file_is_apaches_and_the_old_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KVConfigManager(path)
    kv.put("n", "k", "1")
    kv.save()
    kv.put("n", "k", "2")
    assert not kv.is_saved
    kv.save()
    assert kv.is_saved
    assert json.loads(path.read_text()) == {"configTable": {"n": {"k": "2"}}}
    assert json.loads((tmp_path / "kvConfig.json.bak").read_text()) == {"configTable": {"n": {"k": "1"}}}
    assert {file.name for file in tmp_path.iterdir()} == {"kvConfig.json", "kvConfig.json.bak"}


def test_in_memory() -> None:
    kv = KVConfigManager()
    kv.load()
    kv.put("n", "k", "v")
    assert kv.get("n", "k") == "v"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"configTable":\n{"n":{"k":1,}}}', "line 2"),
        ("[]", "line 1"),
        ('{"configTable":{"n":5}}', "line 1"),
        ("\xff", "kvConfig.json"),
    ],
)
def test_a_broken_file(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=where) as caught:
        KVConfigManager(path).load()
    assert str(path) in str(caught.value)
    assert ".bak" in caught.value.remedy


def test_a_value_that_apache_wrote_as_a_number(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"n":{"k":5}}}')
    kv = KVConfigManager(path)
    kv.load()
    assert kv.get("n", "k") == "5"
