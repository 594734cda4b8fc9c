"""The check finds every kind of damage, and no problem in a valid store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest

from spark_rocket.errors import StoreError
from spark_rocket.store import StoreConfig
from spark_rocket.store.paths import StorePaths
from spark_rocket.store.problems import ProblemKind, StoreProblem
from spark_rocket.store.tools.check import check_store, remedy_of
from tests.kit.clock import START, Clock
from tests.store.helpers import close_right, opened, overwrite, put, put_batch, small
from tests.store.timer_rig import Rig, small_timer


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small(tmp_path_factory.mktemp("template") / "store")
    clock = Clock()
    store = opened(config, clock)
    for i in range(150):
        clock.now += 100
        put(store, "T", i % 2, b"%d" % i * 100, b"KEYS\x01k%d\x02UNIQ_KEY\x01u%d\x02TAGS\x01t%d" % (i, i, i % 3))
    put_batch(store, "B", 0, [(0, b"x", b"KEYS\x01b")] * 30)
    store.close()
    return config.store_path


def kinds(config: StoreConfig) -> set[str]:
    problems = check_store(config.store_path, config)
    assert all(str(problem) and str(config.store_path) in str(problem) for problem in problems)
    return {problem.kind for problem in problems}


def log(config: StoreConfig, index: int) -> Path:
    return sorted(config.commit_log_path.iterdir())[index]


def queue(config: StoreConfig, topic: str = "T", queue_id: int = 0, index: int = 0) -> Path:
    return sorted((config.consume_queue_path / topic / str(queue_id)).iterdir())[index]


def index(config: StoreConfig, number: int = 0) -> Path:
    return sorted(config.index_path.iterdir())[number]


def test_nothing_is_wrong_and_nothing_is_changed(config: StoreConfig) -> None:
    before = {path: path.read_bytes() for path in config.store_path.rglob("*") if path.is_file()}
    steps: list[tuple[int, int]] = []
    assert check_store(config.store_path, config, progress=lambda done, total: steps.append((done, total))) == []
    assert {path: path.read_bytes() for path in config.store_path.rglob("*") if path.is_file()} == before
    assert steps[-1][0] == steps[-1][1]


def test_sizes_are_taken_from_the_files(config: StoreConfig) -> None:
    for path in config.index_path.iterdir():
        path.unlink()
    config.index_path.rmdir()
    assert check_store(str(config.store_path)) == []


Damage = Callable[[StoreConfig], object]
HEADER, ENTRIES = 40, 40 + 4 * 50  # of an index file: where slots and entries begin


def used(path: Path) -> int:
    """The number of entries in a consume queue's file."""
    return -(-len(path.read_bytes().rstrip(b"\0")) // 20)


def damage_body(config: StoreConfig) -> None:
    overwrite(log(config, 1), 150, b"\xff")


def damage_last_entry(config: StoreConfig) -> None:
    path = queue(config, index=-1)
    overwrite(path, used(path) * 20 - 20, bytes(20))


def damage_extra_entry(config: StoreConfig) -> None:
    path = queue(config, index=-1)
    overwrite(path, used(path) * 20, b"\0" * 8 + b"\0\0\0\x64" + b"\0" * 8)


def damage_index_entry(config: StoreConfig) -> None:
    at = ENTRIES + 20 * 30
    hashed = int.from_bytes(index(config).read_bytes()[at : at + 4], "big")
    overwrite(index(config), at, (hashed ^ (50 << 8)).to_bytes(4, "big"))


DAMAGES: list[tuple[str, Damage, str]] = [
    ("body", damage_body, "record"),
    ("body hides what follows", damage_body, "hidden"),
    ("magic", lambda config: overwrite(log(config, 0), 4, b"\xff"), "record"),
    ("place", lambda config: overwrite(log(config, 0), 35, b"\x01"), "record"),
    ("log tail", lambda config: overwrite(log(config, -1), config.mapped_file_size_commit_log - 5, b"\x01"), "tail"),
    ("entry offset", lambda config: overwrite(queue(config), 27, b"\x01"), "entry"),
    ("entry tag", lambda config: overwrite(queue(config), 39, b"\x01"), "entry"),
    ("last entry", damage_last_entry, "entry"),
    ("extra entry", damage_extra_entry, "entry"),
    ("queue tail", lambda config: overwrite(queue(config, index=-1), 397, b"\x01"), "tail"),
    ("lost queue", lambda config: shutil.rmtree(config.consume_queue_path / "T" / "1"), "queue"),
    ("index header", lambda config: overwrite(index(config), 35, b"\x01"), "index"),
    ("index slot", lambda config: overwrite(index(config), HEADER, b"\0\0\0\x05"), "index"),
    ("index chain", lambda config: overwrite(index(config), ENTRIES + 20 * 30 + 16, b"\0\0\0\x1d"), "index"),
    ("index entry", damage_index_entry, "index"),
    ("lost last index", lambda config: index(config, -1).unlink(), "index.behind"),
    ("index twice", lambda config: index(config, -1).write_bytes(index(config).read_bytes()), "index"),
    ("checkpoint", lambda config: overwrite(config.store_path / "checkpoint", 0, b"\x10"), "checkpoint"),
    ("short checkpoint", lambda config: (config.store_path / "checkpoint").write_bytes(b"123"), "checkpoint"),
    ("lost checkpoint", lambda config: (config.store_path / "checkpoint").unlink(), "checkpoint"),
    ("lock", lambda config: (config.store_path / "lock").write_bytes(b"none"), "lock"),
    ("abort", lambda config: (config.store_path / "abort").touch(), "abort"),
    ("foreign file", lambda config: (config.commit_log_path / "x").touch(), "files"),
]


@pytest.mark.parametrize(("damage", "kind"), [pytest.param(*row[1:], id=row[0]) for row in DAMAGES])
def test_damage_is_found(config: StoreConfig, damage: Damage, kind: str) -> None:
    damage(config)
    assert kind in kinds(config)


def test_wrong_sizes_are_found(config: StoreConfig) -> None:
    assert kinds(replace(config, max_index_num=201)) == {"files"}
    assert kinds(replace(config, mapped_file_size_commit_log=64 << 10)) == {"files"}


def test_deleted_topics_are_not_missed(config: StoreConfig) -> None:
    shutil.rmtree(config.consume_queue_path / "B")
    assert kinds(config) == {"queue"}
    (config.store_path / "config").mkdir(exist_ok=True)
    (config.store_path / "config" / "topics.json").write_text('{"topicConfigTable": {"T": {}}}')
    assert kinds(config) == set()


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a directory"):
        check_store(tmp_path / "none")
    assert check_store(tmp_path) == []


# --- one problem does not hide the next -------------------------------------------------------------------------


def problems(config: StoreConfig) -> list[str]:
    return [str(problem) for problem in check_store(config.store_path, config)]


def test_records_after_damage_are_checked_too(config: StoreConfig) -> None:
    damage_body(config)
    overwrite(queue(config), 39, b"\x01")
    overwrite(queue(config, "B"), 20 * 12 + 3, b"\x01")
    found = problems(config)
    assert len(found) == 5
    assert "intact records follow, the first at offset" in found[1]
    assert any(problem.startswith("entry: ") and "/B/0 at 12: " in problem for problem in found)
    assert any(problem.startswith("offsets: ") and "are not in the log" in problem for problem in found)


def test_a_file_out_of_place_leaves_the_others_to_be_checked(config: StoreConfig) -> None:
    (config.commit_log_path / "x").touch()
    (config.consume_queue_path / "T" / "0" / "00000000000000000400").unlink()
    (config.consume_queue_path / "T" / "x").mkdir()
    (config.consume_queue_path / "file").touch()
    (config.commit_log_path / "00000000000000000007").write_bytes(bytes(config.mapped_file_size_commit_log))
    overwrite(index(config), HEADER, b"\0\0\0\x05")
    found = problems(config)
    assert len([problem for problem in found if problem.startswith("files: ")]) == 5
    assert any(problem.startswith("index: ") for problem in found)
    assert not any(problem.startswith(("record: ", "entry: ")) for problem in found)


def test_the_tail_of_a_killed_store_is_not_changed(config: StoreConfig) -> None:
    """Damage that the next start cuts, repairs or rebuilds is not a problem; damage in the middle is."""
    (config.store_path / "abort").touch()
    last = int.from_bytes(queue(config, "B", 0, -1).read_bytes()[9 * 20 : 9 * 20 + 8], "big")
    overwrite(log(config, -1), last % config.mapped_file_size_commit_log + 8, b"\xff")
    damage_extra_entry(config)
    damage_last_entry(config)
    index(config, -1).unlink()
    assert kinds(config) == {"abort"}
    damage_body(config)
    assert kinds(config) == {"abort", "record", "hidden", "offsets"}


def test_a_prepared_file_of_a_killed_writer_is_accepted(config: StoreConfig) -> None:
    size = config.mapped_file_size_commit_log
    (config.commit_log_path / f"{int(log(config, -1).name) + size:020d}").write_bytes(bytes(size))
    assert kinds(config) == {"end"}
    (config.store_path / "abort").touch()
    assert kinds(config) == {"abort"}


@pytest.mark.parametrize("kind", list(ProblemKind))
def test_every_kind_of_damage_has_a_remedy(kind: ProblemKind) -> None:
    assert remedy_of(StoreProblem(kind, Path("store"), ""), StorePaths.of(Path("store"))).endswith(".")


def test_remedies_for_wrong_files_depend_on_their_owner(tmp_path: Path) -> None:
    for place, word in (
        ("commitlog/00000000000000000000", "from a copy"),
        ("consumequeue/T/0/00000000000000000000", "rebuilds queues and index"),
        ("index/20261121000000000", "rebuilds queues and index"),
    ):
        for kind, remedy in ((ProblemKind.FILES, word), (ProblemKind.UNREADABLE, "as the user")):
            assert remedy in remedy_of(StoreProblem(kind, tmp_path / place, ""), StorePaths.of(tmp_path))


def test_files_that_only_newer_brokers_have_are_named(config: StoreConfig) -> None:
    for name in ("consumequeue_ext", "batchconsumequeue", "config/RocksDB", "quarantine"):
        (config.store_path / name).mkdir(parents=True)
    light = config.consume_queue_path / "%LMQ%a" / "0"
    light.mkdir(parents=True)
    (light / ("0" * 20)).write_bytes(
        (b"\0" * 11 + b"\x64" + b"\0" * 8).ljust(config.mapped_file_size_consume_queue, b"\0")
    )
    overwrite(queue(config), 32, (-(1 << 63) + 500).to_bytes(8, "big", signed=True))  # an address in consumequeue_ext
    shutil.rmtree(config.consume_queue_path / "B")
    (config.store_path / "batchconsumequeue" / "B").mkdir()
    notes: list[str] = []
    assert check_store(config.store_path, config, notes=notes) == []
    assert len(notes) == 4
    assert all("not checked" in note and str(config.store_path) in note for note in notes)


def test_an_index_in_pieces(config: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_rocket.store.index.index_file._ENTRIES_PER_READ", 7)
    assert kinds(config) == set()
    damage_index_entry(config)
    assert kinds(config) == {"index"}


# --- the timer's files ------------------------------------------------------------------------------------------


def write_at(name: str, at: int, data: bytes) -> Callable[[Path], object]:
    return lambda store: overwrite(store / name, at, data)


SECOND = f"timerlog/{536:020d}"


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (lambda store: (store / "config" / "timercheck").write_bytes(b"x"), "timercheck: "),
        (write_at("config/timercheck", 8, pack(">q", 9999)), "flushed up to 9999"),
        (write_at(SECOND, 0, bytes(8)), "no valid unit at 536"),
        (write_at(SECOND, 56, pack(">q", 52)), "invalid link"),
        (lambda store: (store / "timerwheel").write_bytes(b"x"), "not 6400"),
        (write_at("timerwheel", 0, bytes(6400)), "do not lead"),
        (lambda store: (store / "timerlog" / "x").touch(), "timerlog/x"),
    ],
    ids=["short checkpoint", "checkpoint ahead", "unit", "link", "short wheel", "wheel", "foreign file"],
)
def test_damage_of_the_timers_files_is_found(tmp_path: Path, damage: Callable[[Path], object], reported: str) -> None:
    rig = Rig(small_timer(tmp_path / "store"))
    for n in range(14):
        rig.send(START + 5000 + 500 * n, str(n))
    rig.advance(START + 5600)
    rig.timer.close()
    close_right(rig.store)
    damage(rig.config.store_path)
    problems = check_store(rig.config.store_path, rig.config)
    assert {problem.kind for problem in problems} == {"timer"}
    assert reported in str(problems[0])
