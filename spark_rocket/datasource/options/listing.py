"""``spark_rocket.options()``: the options of ``format("rocket")`` as values, for users and for ``rocket options``.

It also lists the options of Spark's Kafka source and of rocketmq-spark: with the option to use here, or with the reason
why none is needed. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_rocket.datasource.options.other_names import FOREIGN_NAMES, NOT_NEEDED
from spark_rocket.datasource.options.table import OPTIONS, Option, Scope

_LINK = re.compile(r"\[([^\]]+)\]\((?:[\w./-]*?([\w-]+)\.md)?#?[\w-]*\)")


@dataclass(frozen=True)
class OptionInfo:
    """An option: what it accepts, where it applies, what it does."""

    name: str
    type: str
    default: str | None
    """None: no default, or one that ``meaning`` explains."""
    scope: tuple[str, ...]
    """``read``, ``write``, ``view``; ``read batch`` or ``read stream`` for one of the two. Empty: not supported."""
    meaning: str
    other_names: tuple[str, ...]
    """The names of Spark's Kafka source and of rocketmq-spark for it."""

    def __str__(self) -> str:
        default = f", default {self.default}" if self.default is not None else ""
        scope = f" ({', '.join(self.scope)}; {self.type}{default})" if self.scope else ""
        others = f" Elsewhere: {', '.join(self.other_names)}." if self.other_names else ""
        return f"{self.name}{scope}: {self.meaning}{others}"


def options(pattern: str = "") -> list[OptionInfo]:
    """Return the options of ``format("rocket")`` whose name contains ``pattern``, in the order of the reference.

    ``pattern`` ignores case and also matches the names of Spark's Kafka source (``kafka.bootstrap.servers``) and of
    rocketmq-spark. Options of these that are not needed here follow at the end, with an empty ``scope`` and the reason.
    """
    text = pattern.lower()
    infos = [_info(option) for option in OPTIONS]
    infos += [OptionInfo(name, "", None, (), _plain(reason), ()) for name, reason in NOT_NEEDED.items()]
    return [info for info in infos if any(text in name.lower() for name in (info.name, *info.other_names))]


def scope_names(scopes: frozenset[Scope]) -> tuple[str, ...]:
    """Return scopes as the reference shows them: ``("read", "write batch", "view")``."""
    names = []
    for name, batch, stream in (("read", Scope.READ, Scope.READ_STREAM), ("write", Scope.WRITE, Scope.WRITE_STREAM)):
        if {batch, stream} <= scopes:
            names.append(name)
        elif {batch, stream} & scopes:
            names.append(f"{name} batch" if batch in scopes else f"{name} stream")
    return (*names, "view") if Scope.VIEW in scopes else tuple(names)


def _info(option: Option) -> OptionInfo:
    others = tuple(theirs for theirs, ours in FOREIGN_NAMES.items() if ours == option.name)
    return OptionInfo(
        option.name, _plain(option.type), option.default, scope_names(option.scopes), _plain(option.meaning), others
    )


def _plain(text: str) -> str:
    """Return Markdown as plain text: a link to a page becomes the command that shows the page."""
    return _LINK.sub(lambda link: f"{link[1]} (rocket help {link[2]})" if link[2] else link[1], text).replace("`", "")
