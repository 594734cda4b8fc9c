"""plain_acl.yml: its rules and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.acl.addresses import parts_of
from spark_rocket.acl.rules import ANY, GROUP, MAX_FILE_BYTES, PUB, SUB, TOPIC, AclRules, read_file
from spark_rocket.errors import ConfigError

# As RocketMQ's own distribution has it, but for the names.
APACHES = b"""\
# comment
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC = SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: "12345678"
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true

dataVersion:
  - counter: 1
    timestamp: 1597561308000
"""


def rules_of(text: str | bytes) -> AclRules:
    return AclRules.from_bytes(text if isinstance(text, bytes) else text.encode(), "plain_acl.yml")


def account(more: str) -> str:
    return f"accounts:\n- accessKey: alice-key\n  secretKey: s3cr3t-key\n{more}"


def test_the_file_of_apaches_distribution() -> None:
    rules = rules_of(APACHES)
    first, second = rules.accounts["RocketMQ"], rules.accounts["rocketmq2"]
    assert [pattern.matches(parts_of("192.168.0.7")) for pattern in rules.white] == [False, True]
    assert first.white is None
    assert not first.admin
    assert second.admin
    assert second.white is not None
    assert second.white.matches(parts_of("192.168.1.9"))
    for need, allowed in {
        (TOPIC, "topicA", PUB): False,
        (TOPIC, "topicA", ANY): False,
        (TOPIC, "topicB", PUB): True,
        (TOPIC, "topicB", SUB): True,
        (TOPIC, "topicC", PUB): False,
        (TOPIC, "topicC", SUB): True,
        (TOPIC, "topicC", ANY): True,
        (TOPIC, "other", SUB): False,
        (GROUP, "groupA", SUB): False,
        (GROUP, "groupB", SUB): True,
        (GROUP, "other", SUB): True,
    }.items():
        assert (first.unmet((need,)) is None) is allowed, need
        assert second.unmet((need,)) is None
    assert first.unmet(((TOPIC, "topicB", PUB), (TOPIC, "x", PUB), (GROUP, "groupA", SUB))) == (TOPIC, "x", PUB)


def test_an_administrator_with_own_permissions_has_no_others() -> None:
    found = rules_of(account("  admin: true\n  topicPerms: [orders=PUB]")).accounts["alice-key"]
    assert found.unmet(((TOPIC, "orders", PUB),)) is None
    assert found.unmet(((TOPIC, "orders", SUB),)) is not None


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", None, "the file is empty"),
        ("# nothing\n", None, "the file is empty"),
        ("accounts: []\n", 1, "the file has no accounts and no addresses"),
        ("- a\n", 1, "entries like 'name: value'"),
        ("account: []\n", 1, "unknown name 'account': use globalWhiteRemoteAddresses, accounts"),
        ("accounts: {}\n", 1, "the accounts must be a list"),
        ("accounts:\n- x\n", 2, "an account must be entries"),
        ("accounts:\n- accessKey: alice-key\n", 2, "an account has no secretKey"),
        ("accounts:\n- secretKey: s3cr3t-key\n", 2, "an account has no accessKey"),
        ("accounts:\n- accessKey: alice\n  secretKey: s3cr3t-key\n", 2, "accessKey is shorter than 7 characters"),
        ("accounts:\n- accessKey: alice-key\n  secretKey: s3cr3t\n", 3, "secretKey is shorter than 7 characters"),
        ('accounts:\n- accessKey: alice-key\n  secretKey: "s3cr3t\\0key"\n', 3, "secretKey has a control character"),
        ("accounts:\n- accessKey: alice-key\n  secretKey: 0123456\n", 3, "put it in quotes"),
        ("accounts:\n- accessKey: alice-key\n  secretKey: 1_000_000\n", 3, "put it in quotes"),
        ("accounts:\n- accessKey: alice-key\n  secretKey: 2026-01-31\n", 3, "put it in quotes"),
        ("accounts:\n- accessKey: alice-key\n  secretKey: [s3cr3t-key]\n", 3, "secretKey must be one value"),
        (account("  admin: yes please\n"), 4, "invalid admin 'yes please'"),
        (account("  defaultTopicPerm: PUBS\n"), 4, "invalid permission 'PUBS': use DENY, PUB, SUB or PUB|SUB"),
        (account("  topicPerms: [orders]\n"), 4, "use 'name=permission'"),
        (account("  topicPerms:\n  - orders=PUB\n  - orders=SUB\n"), 6, "duplicate 'orders' in topicPerms"),
        (account("  groupPerms: [g=ALL]\n"), 4, "invalid permission 'ALL'"),
        (account("  whiteRemoteAddress: 10.0.0.0/8\n"), 4, "write networks with *"),
        (account("  whiteRemoteAdress: 10.0.0.1\n"), 4, "unknown name 'whiteRemoteAdress'"),
        (account("  admin: true\n  admin: false\n"), 5, "duplicate admin"),
        (account("") + account("")[10:], 4, "'alice-key' has an account already, in line 2"),
        ("globalWhiteRemoteAddresses:\n- 10.0.0.300\n", 2, "invalid address '10.0.0.300'"),
        ("a: &x 1\n", 1, "anchors and aliases"),
        ("accounts: *x\n", 1, "anchors and aliases"),
        ("[" * 100_000, 1, "the nesting is too deep"),
        ("accounts:\n- accessKey: alice-key\n  secretKey: s3cr3t-key\n bad", None, "plain_acl.yml, line "),
        (b"accounts: \xff\xfe", None, "not YAML in UTF-8"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
    ],
)  # fmt: skip
def test_errors_have_the_line_and_no_secret(text: str | bytes, line: int | None, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rules_of(text)
    said = str(refused.value)
    assert reason in said
    assert line is None or f"plain_acl.yml, line {line}: " in said
    for secret in ("s3cr3t", "0123456", "1_000", "2026"):
        assert secret not in said


def test_a_bomb_of_aliases_is_refused_before_it_is_expanded() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match="anchors and aliases"):
        rules_of("\n".join(lines))


def test_a_file_that_is_too_large_or_not_there(tmp_path: Path) -> None:
    large = tmp_path / "plain_acl.yml"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_file(large)
    with pytest.raises(ConfigError, match="aclEnable=true requires it"):
        read_file(tmp_path / "away.yml")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | st.sampled_from([APACHES]).flatmap(
    lambda whole: st.tuples(st.integers(0, len(whole)), st.binary(max_size=3)).map(
        lambda cut: whole[: cut[0]] + cut[1] + whole[cut[0] + len(cut[1]) :]
    )
))  # fmt: skip
def test_any_file_is_rules_or_an_error(content: bytes) -> None:
    try:
        rules_of(content)
    except ConfigError as error:
        said = str(error)
        assert "12345678" not in said
