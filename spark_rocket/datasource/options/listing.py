"""``spark_rocket.options()``: the options of ``format("rocket")`` as values, for users and for ``rocket options``.

It also lists the options of Spark's Kafka source and of rocketmq-spark: with the option to use here, or with the reason
why none is needed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_rocket.common.arguments import refuse
from spark_rocket.datasource.options.other_names import FOREIGN_NAMES, NOT_NEEDED
from spark_rocket.datasource.options.table import OPTIONS, Option, Scope

_LINK = re.compile(r"\[([^\]]+)\]\((?:[\w./-]*?([\w-]+)(?:\.zh)?\.md)?#?[\w-]*\)")
#: The words of types and scopes.
_CHINESE: Mapping[str, str] = {
    "read batch": "批量读取",
    "read stream": "流式读取",
    "write batch": "批量写入",
    "read": "读取",
    "write": "写入",
    "view": "视图",
    "duration": "时长",
    "size": "大小",
    "integer": "整数",
    "boolean": "布尔值",
    "string": "字符串",
    "JSON or path": "JSON 或路径",
    "path": "路径",
    "list": "列表",
    "addresses": "地址",
    "address map": "地址映射",
    "tag expression": "Tag 表达式",
    "SQL92 expression": "SQL92 表达式",
    "regular expression": "正则表达式",
    "time zone": "时区",
    "time": "时间",
    "character": "字符",
    "name": "名称",
}


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

    def in_chinese(self) -> str:
        """Return the text of an option whose ``meaning`` is Chinese."""
        default = f"，默认 {self.default}" if self.default is not None else ""
        scope = f"（{in_chinese(', '.join(self.scope))}；{in_chinese(self.type)}{default}）" if self.scope else ""
        others = f"其他名称：{'、'.join(self.other_names)}。" if self.other_names else ""
        return f"{self.name}{scope}：{self.meaning}{others}"


def options(pattern: str = "", language: str = "en") -> list[OptionInfo]:
    """Return the options of ``format("rocket")`` whose name contains ``pattern``, in the order of the reference.

    ``pattern`` ignores case and also matches the names of Spark's Kafka source (``kafka.bootstrap.servers``) and of
    rocketmq-spark. Options of these that are not needed here follow at the end, with an empty ``scope`` and the reason.
    ``language``: the language of ``meaning``, ``en`` or ``zh``; ClientError for another one.
    """
    if language not in ("en", "zh"):
        raise refuse("language", language, "'en' or 'zh'")
    text = pattern.lower()
    infos = [_info(option, language) for option in OPTIONS]
    for name, (english, chinese) in NOT_NEEDED.items():
        infos.append(OptionInfo(name, "", None, (), chinese if language == "zh" else english, ()))
    return [info for info in infos if any(text in name.lower() for name in (info.name, *info.other_names))]


def in_chinese(text: str) -> str:
    """Translate scopes, or the words of a type; code and limits stay."""
    parts = (re.split(r" (?=[≥\d])", part, maxsplit=1) for part in text.split(", "))
    return "、".join(" ".join([_CHINESE.get(word, word), *limits]) for word, *limits in parts)


def scope_names(scopes: frozenset[Scope]) -> tuple[str, ...]:
    """Return scopes as the reference shows them: ``("read", "write batch", "view")``."""
    names = []
    for name, batch, stream in (("read", Scope.READ, Scope.READ_STREAM), ("write", Scope.WRITE, Scope.WRITE_STREAM)):
        if {batch, stream} <= scopes:
            names.append(name)
        elif {batch, stream} & scopes:
            names.append(f"{name} batch" if batch in scopes else f"{name} stream")
    return (*names, "view") if Scope.VIEW in scopes else tuple(names)


def _info(option: Option, language: str) -> OptionInfo:
    others = tuple(theirs for theirs, ours in FOREIGN_NAMES.items() if ours == option.name)
    meaning = _plain(option.chinese, "（rocket help {}）") if language == "zh" else _plain(option.meaning)
    return OptionInfo(option.name, _plain(option.type), option.default, scope_names(option.scopes), meaning, others)


def _plain(text: str, page: str = " (rocket help {})") -> str:
    """Return Markdown as plain text: a link becomes the command that shows the page."""
    return _LINK.sub(lambda link: link[1] + page.format(link[2] or "options"), text).replace("`", "")
