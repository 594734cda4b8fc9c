"""Hides secrets among the settings of brokers and the properties of clients.

A spark_rocket broker hides its secrets itself; Apache's brokers send theirs. A value is hidden if its name, or names
within it, suggest a secret. Pure functions.
"""

from __future__ import annotations

import re

HIDDEN = "******"

_NAMES = re.compile(r"secret|passw|credential|token|access_?key|private_?key|authenticationuser|exporterheader", re.I)
_KEYS = re.compile(r"key$", re.I)
_VALUES = re.compile(r"secret_?key|passw|access_?key|://[^/\s:@]*:[^/\s@]+@", re.I)  # also http://user:password@host
_FLAG = re.compile(r"true|false|", re.I)


def is_secret(name: str, value: str) -> bool:
    """Whether a setting is a secret, by its name or its value. Empty values and true or false are none."""
    if value == HIDDEN:
        return True
    if _FLAG.fullmatch(value.strip()):
        return False
    if _NAMES.search(name) or _VALUES.search(value):
        return True
    return bool(_KEYS.search(name)) and not value.strip().isdecimal()


def shown(name: str, value: str) -> str:
    """Return the value, or asterisks if it is a secret."""
    return HIDDEN if is_secret(name, value) else value
