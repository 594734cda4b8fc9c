"""A group of verbs whose modules are imported when one of them is asked for, so that every start is quick.

A group knows its verbs by a table: section, name, where the click command is, and the line that help says of it.
Thread-safety: for one thread. Corresponds to MQAdminStartup's list of SubCommands.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

Verbs = Mapping[str, tuple[str, str]]
"""Name to (``module:attribute``, one line of help)."""


class LazyGroup(click.Group):
    """``LazyGroup(sections={"Servers": {"up": ("spark_rocket.cli.servers.up:up", "…")}})``

    Verbs that are added in the ordinary way (``@group.command()``) stand beside these.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Verbs], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self._lazy = {name: verb for verbs in sections.values() for name, verb in verbs.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *(name for name in super().list_commands(ctx) if name not in self._lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, which knows only those that are imported, and before 8.4 none that is meant."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx))
            meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Ordinary ones are the first section's.
        ordinary = [(name, command.get_short_help_str(200)) for name, command in self.commands.items()]
        width = max(len(name) for name in self.list_commands(ctx))
        for title, verbs in self.sections.items():
            rows = [*ordinary, *((name, line) for name, (_, line) in verbs.items())]
            ordinary = []
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in rows])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Names with their lines, without importing what they stand for."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        lines = {name: line for name, (_, line) in self._lazy.items()}
        lines |= {name: command.get_short_help_str(60) for name, command in self.commands.items()}
        return [
            click.shell_completion.CompletionItem(name, help=line)
            for name, line in lines.items()
            if name.startswith(incomplete)
        ]
