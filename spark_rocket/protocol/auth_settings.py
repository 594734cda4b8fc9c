"""Checks of the settings of ACL 2.0, which brokers and proxies share: Apache's class names, and what fits together.

Corresponds to org.apache.rocketmq.auth.config.AuthConfig.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_rocket.errors import ConfigError

_AUTH = "org.apache.rocketmq.auth"
AUTHENTICATION_PROVIDER = f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider"
_AUTHENTICATION_METADATA = f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
AUTHORIZATION_PROVIDER = f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider"
_AUTHORIZATION_METADATA = f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
STATEFUL_AUTHENTICATION = f"{_AUTH}.authentication.strategy.StatefulAuthenticationStrategy"
AUTHENTICATION_STRATEGIES = (
    f"{_AUTH}.authentication.strategy.StatelessAuthenticationStrategy",
    STATEFUL_AUTHENTICATION,
)
AUTHORIZATION_STRATEGIES = tuple(
    f"{_AUTH}.authorization.strategy.{kind}AuthorizationStrategy" for kind in ("Stateless", "Stateful")
)


def one_class(setting: str, *names: str) -> Callable[[str], None]:
    """A check that accepts these Java classes, and nothing."""

    def check(text: str) -> None:
        if text.strip() and text.strip() not in names:
            raise ConfigError(
                f"{setting}={text.strip()} is not supported.", remedy=f"Remove it, or use {' or '.join(names)}."
            )

    return check


LOCAL_AUTHENTICATION = one_class("authenticationMetadataProvider", _AUTHENTICATION_METADATA)
LOCAL_AUTHORIZATION = one_class("authorizationMetadataProvider", _AUTHORIZATION_METADATA)
_PROXY = "org.apache.rocketmq.proxy.auth"
PROXY_AUTHENTICATION = one_class(
    "authenticationMetadataProvider", f"{_PROXY}.ProxyAuthenticationMetadataProvider", _AUTHENTICATION_METADATA
)
PROXY_AUTHORIZATION = one_class(
    "authorizationMetadataProvider", f"{_PROXY}.ProxyAuthorizationMetadataProvider", _AUTHORIZATION_METADATA
)


def codes(setting: str) -> Callable[[str], None]:
    """A check of a white list: request codes, or full names of gRPC messages, separated by commas."""

    def check(text: str) -> None:
        for part in codes_of(text):
            if not part.isdecimal() and not part.startswith("apache.rocketmq.v2."):
                raise ConfigError(
                    f"Invalid entry {part[:80]!r} of {setting}.",
                    remedy="Use request codes (105,34) or gRPC messages (apache.rocketmq.v2.HeartbeatRequest).",
                )

    return check


def codes_of(text: str) -> frozenset[str]:
    """Parse a white list."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def check_access(acl_enable: bool, authentication_enabled: bool, authorization_enabled: bool) -> None:
    """Raise ConfigError for settings of access control that do not fit together."""
    if acl_enable and authentication_enabled:
        raise ConfigError(
            "aclEnable=true and authenticationEnabled=true exclude each other.",
            remedy="Use aclEnable for plain_acl.yml (ACL 1.0), or authenticationEnabled for users and policies (2.0). "
            "migrateAuthFromV1Enabled=true converts the accounts.",
        )
    if authorization_enabled and not authentication_enabled:
        raise ConfigError(
            "authorizationEnabled=true without authenticationEnabled=true would trust any name.",
            remedy="Set authenticationEnabled=true, too.",
        )
