"""The accounts of clusters with access control in tests."""

from __future__ import annotations

from typing import Any

KEYS: dict[str, Any] = {"access_key": "root-key", "secret_key": "r00t-s3cr3t"}
ACCOUNTS = """\
accounts:
- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}
- accessKey: alice-key
  secretKey: al1ce-s3cr3t
  topicPerms: [orders=PUB]
"""
