"""Password hashes and login sessions.

A hash is ``scrypt$N$r$p$salt$key``, the last two in base64. An attempt takes 16 MiB and about 50 ms. Unknown users and
wrong passwords take the same time and get the same response. After ``FREE_FAILURES`` failed attempts, an address must
wait. Attempts are counted before the password is hashed, so concurrent attempts count too.

Thread-safety: ``Sessions`` on one event loop only; hash on a thread. Sessions are in memory only: a restart ends them.
Corresponds to the login of RocketMQ's dashboard.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_rocket.console.responses import Refused

PREFIX = "scrypt$"
_COST, _BLOCK, _PARALLEL = 1 << 14, 8, 1
_MAX_MEMORY_BYTES = 256 << 20

IDLE_SECONDS = 8 * 3600.0
LIFE_SECONDS = 24 * 3600.0
MAX_SESSIONS = 1_000
FREE_FAILURES = 5
PAUSE_SECONDS = 30.0
MAX_ADDRESSES = 10_000
MAX_PASSWORD_CHARACTERS = 1_024


def hashed(password: str, salt: bytes | None = None) -> str:
    salt = secrets.token_bytes(16) if salt is None else salt
    key = _derive(password, salt, _COST, _BLOCK, _PARALLEL)
    return f"{PREFIX}{_COST}${_BLOCK}${_PARALLEL}${_text(salt)}${_text(key)}"


def is_right(password: str, kept: str) -> bool:
    cost, block, parallel, salt, key = _parts(kept)
    return hmac.compare_digest(_derive(password, salt, cost, block, parallel), key)


def check_hash(kept: str) -> bool:
    try:
        cost, block, parallel, salt, key = _parts(kept)
    except ValueError:
        return False
    is_power = cost > 1 and cost & (cost - 1) == 0
    return (
        is_power and block > 0 and 0 < parallel <= 16 and 128 * cost * block < _MAX_MEMORY_BYTES and bool(salt and key)
    )


def _parts(kept: str) -> tuple[int, int, int, bytes, bytes]:
    _, cost, block, parallel, salt, key = kept.split("$")
    return (
        int(cost),
        int(block),
        int(parallel),
        base64.b64decode(salt, validate=True),
        base64.b64decode(key, validate=True),
    )


def _derive(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=cost,
        r=block,
        p=parallel,
        maxmem=_MAX_MEMORY_BYTES,
        dklen=32,
    )


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@dataclass(slots=True)
class LoginSession:
    user: str
    csrf: str
    begun: float
    used: float


class Sessions:
    """The sessions, and the failed attempts by address."""

    def __init__(self, users: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._clock = clock
        self._sessions: OrderedDict[bytes, LoginSession] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._unknown_user_hash = hashed(secrets.token_hex()) if users else ""

    def find(self, token: str | None) -> LoginSession | None:
        if not token:
            return None
        key = _digest(token)
        session = self._sessions.get(key)
        if session is None:
            return None
        now = self._clock()
        if now - session.used > IDLE_SECONDS or now - session.begun > LIFE_SECONDS:
            del self._sessions[key]
            return None
        session.used = now
        return session

    def check_pause(self, address: str) -> None:
        """Raise Refused with status 429 while the address must wait."""
        failures, last = self._failures.get(_source(address), (0, 0.0))
        left = last + PAUSE_SECONDS - self._clock()
        if failures >= FREE_FAILURES and left > 0:
            raise Refused(
                "Too many failed login attempts.", remedy=f"Wait {left:.0f} seconds.", code="TOO_MANY_ATTEMPTS"
            )

    def is_user(self, user: str, password: str) -> bool:
        """Check a password. Takes about 50 ms for any user. Call it on a thread."""
        kept = self._users.get(user)
        right = is_right(password[:MAX_PASSWORD_CHARACTERS], kept or self._unknown_user_hash)
        return right and kept is not None and len(password) <= MAX_PASSWORD_CHARACTERS

    def attempt(self, address: str) -> None:
        """Count an attempt as failed, until ``begin``. Raise Refused with status 429 while the address must wait."""
        self.check_pause(address)
        source = _source(address)
        failures, last = self._failures.pop(source, (0, 0.0))
        if self._clock() - last > PAUSE_SECONDS * 2:
            failures = 0
        self._failures[source] = (failures + 1, self._clock())
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def begin(self, user: str, address: str) -> tuple[str, LoginSession]:
        """Create a session; return it with its token, of which only a hash is stored."""
        self._failures.pop(_source(address), None)
        now = self._clock()
        token = secrets.token_urlsafe(32)
        session = self._sessions[_digest(token)] = LoginSession(user, secrets.token_urlsafe(32), now, now)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return token, session

    def end(self, token: str | None) -> None:
        if token:
            self._sessions.pop(_digest(token), None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _source(address: str) -> str:
    """Return the IPv4 address, or the IPv6 /64 network: one machine can use all of its addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
