"""Run the ``rocket`` command or a script in a Python with only the packages of the core, whatever is installed.

python -m tests.kit.core_only rocket topic list
python -m tests.kit.core_only script CODE
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from spark_rocket.common.extras import EXTRAS

BLOCKED = {*EXTRAS, "uvloop", "py4j"}


class Blocker:
    """A finder that reports the packages of the extras as missing."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def main(kind: str, *arguments: str) -> int:
    """Run the command or the script; return the exit status."""
    sys.meta_path.insert(0, Blocker)
    if kind == "script":
        exec(arguments[0], {"__name__": "__main__"})
        return 0
    from spark_rocket.cli import main as rocket

    return rocket(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
