"""The tables of the servers' settings, from their declarations. ``generated_tables`` writes them into pages."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from enum import Enum
from functools import partial

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.known_settings import KNOWN_UNUSED, REFUSED
from spark_rocket.protocol.setting import Setting, settings_of, text_of
from spark_rocket.proxy import proxy_config
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.remoting.tls.settings import CONFIG_FILE, CONFIG_FILE_MEANING, TlsSettings
from spark_rocket.store.config import StoreConfig
from tools.reference_tables import rows

_HEAD = ("setting", "type", "default", "values", "description")
_TYPES = {"int": "integer", "bool": "boolean", "str": "string", "Path": "path"}
_BROKER = [
    (setting, config) for config in (BrokerConfig(), StoreConfig()) for setting in settings_of(type(config)).values()
]


def settings(argument: str, language: int) -> str:
    return SETTINGS[argument]()


def _section(title: str) -> str:
    """The settings of a broker and its store that belong to a section."""
    return rows(_HEAD, (_cells(setting, config) for setting, config in _BROKER if setting.section == title))


def _proxy() -> str:
    return rows(_HEAD, (_cells(setting, ProxyConfig()) for setting in settings_of(ProxyConfig).values()))


def _cells(setting: Setting, config: BrokerConfig | StoreConfig | ProxyConfig) -> Sequence[str]:
    kind = "choice" if setting.enum is not None else _TYPES[setting.kind]
    kind += ", secret" * setting.secret + ", dynamic" * setting.dynamic
    values = ""
    if setting.enum is not None:
        values = _choices(setting.enum)
    elif setting.kind == "int":
        values = f"{setting.low}–{setting.high}" if setting.high is not None else f"≥ {setting.low}"
        values += f", multiples of {setting.step}" if setting.step > 1 else ""
    return f"`{setting.name}`", kind, _code(text_of(getattr(config, setting.attribute))), values, setting.meaning


def _tls() -> str:
    """The settings of TLS. The description has a default that depends on other settings."""
    return rows(_HEAD, [*_tls_cells(), (f"`{CONFIG_FILE}`", "path", "", "", CONFIG_FILE_MEANING)])


def _tls_cells() -> Iterable[Sequence[str]]:
    for entry in fields(TlsSettings):
        name, kind, default = entry.metadata["name"], entry.metadata["kind"], entry.default
        is_choice = issubclass(kind, Enum)
        text = "choice" if is_choice else "path" if name.endswith("Path") else _TYPES[kind.__name__]
        shown = "" if default is None else _code(text_of(default))
        values = _choices(kind) if is_choice else ""
        yield f"`{name}`", text + ", secret" * (not entry.repr), shown, values, entry.metadata["meaning"]


def _without_effect(names: Iterable[str]) -> str:
    return textwrap.fill(" ".join(f"`{name}`" for name in sorted(names, key=str.lower)), 120)


def _unsupported(refused: Iterable[tuple[str, Sequence[str], str]]) -> str:
    lines = (
        (f"`{name}`", ", ".join(_code(value) or "empty" for value in values), remedy)
        for name, values, remedy in refused
    )
    return rows(("setting", "accepted values", "remedy"), lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _choices(enum: type[Enum]) -> str:
    return ", ".join(f"`{member.value}`" for member in enum)


SETTINGS: dict[str, Callable[[], str]] = {
    **{title: partial(_section, title) for title in dict.fromkeys(setting.section for setting, _ in _BROKER)},
    "without effect, broker": partial(_without_effect, KNOWN_UNUSED),
    "unsupported, broker": lambda: _unsupported((name, *refusal) for name, refusal in REFUSED.items()),
    "proxy": _proxy,
    "without effect, proxy": partial(_without_effect, proxy_config.KNOWN_UNUSED),
    "unsupported, proxy": lambda: _unsupported(
        (name, [accepted], remedy) for name, (accepted, remedy) in proxy_config.REFUSED.items()
    ),
    "TLS": _tls,
}
