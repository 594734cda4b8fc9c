"""The users in force of ACL 2.0, and the authentication and authorization of requests.

A request passes if an enabled user signed it, and the user is a Super user or its policies allow each pair of the
request (``policies``). Without ``authorizationEnabled`` the signature is sufficient. A refusal has Apache's text, with
user, resource and address, and then names the missing action. It has neither passwords nor signatures.

Requests of ``authenticationWhitelist`` need no signature, requests of ``authorizationWhitelist`` no policy. Unlike in
Apache's servers, a request of the first list alone needs a signature where policies are checked: without one, it could
name any user.

Corresponds to DefaultAuthenticationHandler, UserAuthorizationHandler and AclAuthorizationHandler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from spark_rocket.acl.refusals import Refusals
from spark_rocket.acl.user_table import User, UserTable
from spark_rocket.acl.users_file import read_users, write_users
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.auth_settings import codes_of
from spark_rocket.protocol.requests.needs import Pair, Resource


class UserControl(Refusals):
    """The checks of one server. The checks of each protocol are a subclass."""

    def __init__(self, *, cluster_name: str, authorizes: bool, unsigned: str, unauthorized: str) -> None:
        """``authorizes``: whether policies are checked (``authorizationEnabled``).

        ``unsigned``, ``unauthorized``: the white lists, with codes of Remoting requests and names of gRPC messages.
        """
        super().__init__()
        self.authorizes = authorizes
        self._cluster_name = cluster_name
        self._unsigned = codes_of(unsigned)
        self._unauthorized = codes_of(unauthorized)

    def needs_no_policy(self, code: str) -> bool:
        return not self.authorizes or code in self._unauthorized

    def needs_no_signature(self, code: str) -> bool:
        return code in self._unsigned and self.needs_no_policy(code)

    def enabled_user(self, username: str | None, user: User | None) -> User:
        """Return the user of this name; NotAuthenticatedError if it is None or disabled."""
        if not username:
            raise self.not_authenticated("username cannot be null.")
        if user is None:
            raise self.not_authenticated(f"User:{username[:100]} is not found.")
        if not user.is_enabled:
            raise self.not_authenticated(f"User:{username} is disabled.")
        return user

    def not_signed(self) -> RefusedError:
        return self.not_authenticated("check signature failed.")

    def check_policies(self, user: User, pairs: Iterable[Pair], source: str) -> None:
        """Raise RefusedError for the first pair that the policies of a Normal user do not allow."""
        for pair in pairs:
            name = self._cluster_name if pair.resource is Resource.CLUSTER else pair.name
            reason = user.policies.refusal(pair, name, source)
            if reason is not None:
                needed = " or ".join(action.value for action in pair.actions)
                raise self.refusal(
                    f"User:{user.username} has no permission to access {pair.resource.value}:{name[:255]} from "
                    f"{source}, {reason} The request needs {needed}."
                )


class UsersOnDisk:
    """A file of users, changed one change at a time: a change is in effect after it is on disk."""

    def __init__(self, path: Path) -> None:
        """ConfigError for an invalid file."""
        self.path = path
        self.table = read_users(path)
        self._changing = asyncio.Lock()

    def initialize(self, edit: Callable[[UserTable], UserTable]) -> None:
        """Change the users at the start, before requests are handled. OSError if the file cannot be written."""
        table = edit(self.table)
        if table is not self.table:
            write_users(self.path, table)
            self.table = table

    async def change(self, edit: Callable[[UserTable], UserTable]) -> UserTable:
        """Change the users; on return the change is on disk. After RefusedError or OSError there is no change."""
        async with self._changing:
            table = edit(self.table)
            await asyncio.to_thread(write_users, self.path, table)
            self.table = table
            return table
