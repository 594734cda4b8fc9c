"""A driver of the exactly-once sink without Spark: the calls of Spark, in the same kinds of processes, but faster.

    python -m tests.crash.sink_driver NAME_SERVER TOPIC DIRECTORY QUERY EPOCHS

For each epoch a process for each task stages rows with a random part, and a new process calls ``commit``; then the
epoch's number is written to DIRECTORY, which is the checkpoint and has the plans (``sink_points.py``). A task that dies
is retried. When ``commit`` dies, the epoch is run again, as when a query is restarted. Ends when all plans are done
and so many epochs are committed, none of them interrupted. Exit status 3: another driver has overtaken this one.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa

from spark_rocket.datasource.exactly_once import staging
from spark_rocket.datasource.exactly_once.driver import commit_epoch
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.sink_brokers import brokers_for
from spark_rocket.datasource.exactly_once.staging import Staged, stage_rows
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.errors import ExactlyOnceError
from tests.crash.sink_points import install, plans

TASKS, ROWS, OVERTAKEN = 2, 60, 3


def sink_options(name_server: str, topic: str) -> WriteOptions:
    given = {"nameServer": name_server, "topic": topic, "deliveryGuarantee": "exactlyOnce"}
    return parse_write_options(
        given | {"gracePeriod": "2s", "requestTimeout": "1s", "sendBatchSize": "10"}, Scope.WRITE_STREAM
    )


def rows_of(query: str, batch: int, task: int) -> pa.RecordBatch:
    """Different each time, like those of a query with ``rand()``."""
    bodies = [f"{query}/{batch}/{task}/{row}/{random.random()}" for row in range(ROWS)]
    return pa.record_batch({"body": bodies, "shardingKey": [f"k{row % 5}" if row % 2 else None for row in range(ROWS)]})


def committed(directory: Path) -> int:
    """How many epochs a checkpoint knows of."""
    return len(list(directory.glob("*.committed")))


class Driver:
    """One process of it."""

    def __init__(self, options: WriteOptions, directory: Path, query: str) -> None:
        self._options = options
        self._directory = directory
        self._query = query
        self._pid = os.getpid()

    def run(self, epochs: int) -> None:
        while True:
            batch = committed(self._directory)
            begun = self._directory / f"{batch}.begun"
            if batch >= epochs and not plans(self._directory) and not begun.exists():
                return
            begun.touch()
            messages = [self._staged(child) for child in self._begin_tasks(batch)]
            if self._end(self._child(partial(self._commit, messages))):
                (self._directory / f"{batch}.committed").touch()

    # --- processes --------------------------------------------------------------------------------------------

    def _child(self, work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            install(self._directory, self._kill_driver)
            work()
            status = 0
        except ExactlyOnceError as error:
            print(error, file=sys.stderr, flush=True)
            status = OVERTAKEN if "OVERTAKEN" in str(error) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _kill_driver(self) -> None:
        if os.getppid() == self._pid:
            os.kill(self._pid, signal.SIGKILL)

    @staticmethod
    def _end(pid: int) -> bool:
        """Whether the process did its work; False if it was killed."""
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status not in (0, -signal.SIGKILL):
            sys.exit(status)
        return status == 0

    # --- what they do -----------------------------------------------------------------------------------------

    def _begin_tasks(self, batch: int) -> list[tuple[int, Path, Callable[[], None]]]:
        begun: list[tuple[int, Path, Callable[[], None]]] = []
        for task in range(TASKS):
            file = Path(tempfile.mkstemp(dir=self._directory, prefix="staged-")[1])
            work = partial(self._stage, batch, task, file)
            begun.append((self._child(work), file, work))
        return begun

    def _staged(self, child: tuple[int, Path, Callable[[], None]]) -> Staged:
        pid, file, work = child
        while not self._end(pid):
            pid = self._child(work)
        message: Staged = pickle.loads(file.read_bytes())
        file.unlink()
        return message

    def _stage(self, batch: int, task: int, file: Path) -> None:
        context = SimpleNamespace(partitionId=lambda: task)
        vars(staging)["TaskContext"] = SimpleNamespace(get=lambda: context)
        brokers = brokers_for(self._options)
        epoch = Epoch(self._query, batch, str(self._pid))
        staged = stage_rows(iter([rows_of(self._query, batch, task)]), brokers, self._options, epoch)
        file.write_bytes(pickle.dumps(staged))

    def _commit(self, messages: list[Staged]) -> None:
        commit_epoch(self._options, messages, is_stream=True)


def main(name_server: str, topic: str, directory: str, query: str, epochs: str) -> None:
    Driver(sink_options(name_server, topic), Path(directory), query).run(int(epochs))


if __name__ == "__main__":
    main(*sys.argv[1:])
