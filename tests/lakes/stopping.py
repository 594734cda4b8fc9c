"""An Iceberg catalog and its files, which kill their process before a chosen step (``py-io-impl``)."""

from __future__ import annotations

import os
import signal
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO


class Steps:
    """Counts new files, and the commit twice: before and after it."""

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, kill_at: int | None) -> None:
        """Count from 0, and kill the process at a number."""
        self._kill_at = kill_at
        self._count = 0

    def step(self, name: str) -> None:
        if self._count == self._kill_at:
            os.write(1, f'"{name}"\n'.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self._count += 1


STEPS = Steps()


class Files(PyArrowFileIO):
    def new_output(self, location: str) -> Any:
        STEPS.step("before " + location.rpartition(".")[2])
        return super().new_output(location)


class Catalog(SqlCatalog):
    def commit_table(self, *args: Any, **kwargs: Any) -> Any:
        STEPS.step("before commit")
        done = super().commit_table(*args, **kwargs)
        STEPS.step("after commit")
        return done
