"""Accounts, keys and permissions in ``plain_acl.yml``.

::

    globalWhiteRemoteAddresses:
      - 10.10.103.*
    accounts:
      - accessKey: rocketmq1
        secretKey: "12345678"
        whiteRemoteAddress: 192.168.0.{1,2}
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms:
          - orders=PUB|SUB
        groupPerms:
          - billing=SUB

Parsing is strict. Apache's broker silently reads a misspelled permission as DENY, and ignores unknown names and a
second account with the same key; here these are errors that name the line. Keys need more than six characters, as
there. Errors never contain a secret.

YAML is parsed as events first, so that input with excessive expansion (anchors and aliases, deep nesting, a file of
more than 1 MiB) is refused before any object is created.

Corresponds to org.apache.rocketmq.acl.plain.{PlainAccessResource, PlainPermissionManager} and acl.common.Permission.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from spark_rocket.acl.addresses import AddressPattern
from spark_rocket.errors import ConfigError
from spark_rocket.model import AUTO_CREATE_TOPIC_KEY, BENCHMARK_TOPIC, RETRY_PREFIX, TRACE_TOPIC, is_system_topic
from spark_rocket.protocol.auth import SecretKey, key_problem

DENY = 1
ANY = 2
PUB = 4
SUB = 8

MAX_FILE_BYTES = 1024 * 1024
_MAX_DEPTH = 8
_MIN_KEY_CHARACTERS = 7

PERMISSIONS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
_REMEDY = "Correct the file; See `rocket help security` for an example."

_TOP = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
OF_ACCOUNT = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)
_CONVERTED = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: A permission that a request requires: the kind of resource, its name, the permission.
Need = tuple[str, str, int]
TOPIC, GROUP = "topic", "group"
Needs = tuple[Need, ...]
_REPLY_SUFFIX = "_REPLY_TOPIC"
#: System topics that never contain messages sent to other topics.
_ORDINARY = frozenset((AUTO_CREATE_TOPIC_KEY, BENCHMARK_TOPIC, TRACE_TOPIC))


def need_of_topic(topic: str, permission: int) -> Need:
    """The need of a topic; a retry topic belongs to its group."""
    if topic.startswith(RETRY_PREFIX):
        return (GROUP, topic[len(RETRY_PREFIX) :], SUB)
    return (TOPIC, topic, permission)


def for_all(topic: str) -> bool:
    """Whether all accounts may send to a topic: senders of messages trace them, receivers of requests reply."""
    return topic == TRACE_TOPIC or topic.endswith(_REPLY_SUFFIX)


def is_store_of_others(topic: str) -> bool:
    """Whether this is a system topic that holds messages sent to other topics."""
    return is_system_topic(topic) and topic not in _ORDINARY


class Account:
    """An account with its keys and permissions."""

    def __init__(
        self,
        access_key: str,
        secret_key: str,
        *,
        white: AddressPattern | None = None,
        admin: bool = False,
        default_topic: int = DENY,
        default_group: int = DENY,
        topics: dict[str, int] | None = None,
        groups: dict[str, int] | None = None,
    ) -> None:
        self.access_key = access_key
        self.key = SecretKey(secret_key)
        self.white = white
        self.admin = admin
        self._defaults = {TOPIC: default_topic, GROUP: default_group}
        self._owned = {TOPIC: topics or {}, GROUP: groups or {}}
        self._everything = admin and not topics and not groups

    def __repr__(self) -> str:
        return f"Account({self.access_key})"

    def unmet(self, needs: Needs) -> Need | None:
        """Return the first need for which the account has no permission; None if there is none."""
        if not self._everything:
            for need in needs:
                kind, name, permission = need
                owned = self._owned[kind].get(name)
                if owned is None:
                    owned = self._default(kind, name)
                if owned & DENY or not owned & (PUB | SUB if permission == ANY else permission):
                    return need
        return None

    def _default(self, kind: str, name: str) -> int:
        """The default permission of a topic or group without an entry.

        System topics store delayed messages of all other topics: the default is DENY. A group's DENY also applies to
        its retry topics of POP, ``%RETRY%group_topic``.
        """
        if kind == TOPIC:
            return DENY if is_store_of_others(name) else self._defaults[TOPIC]
        owned = [group for group in self._owned[GROUP] if name.startswith((f"{group}_", f"{group}+"))]
        return DENY if any(self._owned[GROUP][group] & DENY for group in owned) else self._defaults[GROUP]


class AclRules:
    """A file's accounts and white list."""

    def __init__(self, accounts: Iterable[Account], white: Iterable[AddressPattern] = ()) -> None:
        self.accounts = {account.access_key: account for account in accounts}
        self.white = tuple(white)

    @classmethod
    def from_file(cls, path: Path) -> AclRules:
        """Load a file; ConfigError with file, line and reason if it is invalid."""
        return cls.from_bytes(read_file(path), str(path))

    @classmethod
    def from_bytes(cls, content: bytes, source: str) -> AclRules:
        """Parse content. With an empty ``source``, errors have no file and line: for content not from a file."""
        return _Parser(source).rules(content)


def read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"The access control file {path} cannot be read: {error.strerror or error}.",
            remedy="aclEnable=true requires it; set its path with aclFile. See `rocket help security` for an example.",
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES:,} bytes.", remedy="Reduce the number of accounts.")
    return content


class _Parser:
    """Parses one file; errors name the line."""

    def __init__(self, source: str) -> None:
        self._source = source

    def rules(self, content: bytes) -> AclRules:
        top = self._document(content)
        if top is None:
            raise self._error(None, "the file is empty")
        values = self._mapping(top, _TOP, "the file")
        white = [self._pattern(node) for node in self._items(values.get("globalWhiteRemoteAddresses"), "addresses")]
        accounts: dict[str, Account] = {}
        lines: dict[str, int] = {}
        for node in self._items(values.get("accounts"), "accounts"):
            account = self._account(node)
            first = lines.setdefault(account.access_key, node.start_mark.line + 1)
            if account.access_key in accounts:
                raise self._error(node, f"accessKey {account.access_key!r} has an account already, in line {first}")
            accounts[account.access_key] = account
        if not accounts and not white:
            raise self._error(top, "the file has no accounts and no addresses")
        return AclRules(accounts.values(), white)

    # --- YAML -------------------------------------------------------------------------------------------------------

    def _document(self, content: bytes) -> yaml.Node | None:
        try:
            depth = 0
            for event in yaml.parse(content, Loader=_LOADER):
                if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                    raise self._error(event, "anchors and aliases (& and *) are not allowed; quote such strings")
                if isinstance(event, yaml.CollectionStartEvent):
                    depth += 1
                    if depth > _MAX_DEPTH:
                        raise self._error(event, "the nesting is too deep")
                elif isinstance(event, yaml.CollectionEndEvent):
                    depth -= 1
            node: yaml.Node | None = yaml.compose(content, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            # Not str(error): that quotes the line, which may hold a secret.
            raise self._error(error.problem_mark or error.context_mark, error.problem or "it is not YAML") from None
        except (yaml.YAMLError, UnicodeError):
            raise self._error(None, "it is not YAML in UTF-8") from None
        return node

    def _mapping(self, node: yaml.Node, names: tuple[str, ...], what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"{what} must be entries like 'name: value'")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name not in names:
                raise self._error(key, f"unknown name {name[:40]!r}: use " + ", ".join(names))
            if name in found:
                raise self._error(key, f"duplicate {name}")
            found[name] = value
        return {name: value for name, value in found.items() if not self._is_null(value)}

    def _items(self, node: yaml.Node | None, what: str) -> Iterator[yaml.Node]:
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, f"the {what} must be a list with '- ' before each entry")
        yield from node.value

    def _text(self, node: yaml.Node, what: str, *, is_secret: bool = False) -> str:
        """The scalar as written; values that YAML converts (0x10, 1_000) must be quoted."""
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, f"{what} must be one value")
        text: str = node.value
        if node.tag in _CONVERTED and (
            not text.isascii() or not text.isdigit() or (text.startswith("0") and text != "0")
        ):
            shown = "a number" if is_secret else text
            raise self._error(node, f"{what} is {shown}, which YAML reads as something else: put it in quotes")
        return text

    @staticmethod
    def _is_null(node: yaml.Node) -> bool:
        return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"

    # --- accounts -----------------------------------------------------------------------------------------------------

    def _account(self, node: yaml.Node) -> Account:
        values = self._mapping(node, OF_ACCOUNT, "an account")
        keys: dict[str, str] = {}
        for name in ("accessKey", "secretKey"):
            if name not in values:
                raise self._error(node, f"an account has no {name}")
            keys[name] = self._text(values[name], name, is_secret=name == "secretKey")
            problem = key_problem(keys[name])
            if problem is None and len(keys[name]) < _MIN_KEY_CHARACTERS:
                problem = f"is shorter than {_MIN_KEY_CHARACTERS} characters"
            if problem is not None:
                raise self._error(values[name], f"{name} {problem}")
        white = values.get("whiteRemoteAddress")
        blank = white is not None and isinstance(white, yaml.ScalarNode) and not white.value.strip()
        return Account(
            keys["accessKey"],
            keys["secretKey"],
            white=None if white is None or blank else self._pattern(white),
            admin=self._boolean(values.get("admin")),
            default_topic=self._permission(values.get("defaultTopicPerm")),
            default_group=self._permission(values.get("defaultGroupPerm")),
            topics=self._permissions(values.get("topicPerms"), "topicPerms"),
            groups=self._permissions(values.get("groupPerms"), "groupPerms"),
        )

    def _boolean(self, node: yaml.Node | None) -> bool:
        if node is None:
            return False
        text = self._text(node, "admin").lower()
        if text not in ("true", "false"):
            raise self._error(node, f"invalid admin {text[:40]!r}: use true or false")
        return text == "true"

    def _permission(self, node: yaml.Node | None) -> int:
        return DENY if node is None else self._one(node, self._text(node, "a permission"))

    def _one(self, node: yaml.Node, text: str) -> int:
        permission = PERMISSIONS.get(text.strip())
        if permission is None:
            raise self._error(node, f"invalid permission {text.strip()[:40]!r}: use DENY, PUB, SUB or PUB|SUB")
        return permission

    def _permissions(self, node: yaml.Node | None, what: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for item in self._items(node, what):
            name, equals, permission = self._text(item, what).partition("=")
            name = name.strip()
            if not name or not equals:
                raise self._error(item, f"invalid entry of {what}: use 'name=permission'")
            if name in found:
                raise self._error(item, f"duplicate {name!r} in {what}")
            found[name] = self._one(item, permission)
        return found

    def _pattern(self, node: yaml.Node) -> AddressPattern:
        text = self._text(node, "an address")
        try:
            return AddressPattern(text)
        except ValueError as error:
            raise self._error(node, f"invalid address {text[:80]!r}: {error}") from None

    def _error(self, where: Any, reason: str) -> ConfigError:
        mark = getattr(where, "start_mark", where)
        line = f", line {mark.line + 1}" if mark is not None else ""
        where = f"{self._source}{line}: " if self._source else ""
        return ConfigError(f"{where}{reason}.", remedy=_REMEDY)
