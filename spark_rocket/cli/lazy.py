"""A group of verbs that imports the module of a verb when the verb is used, so that every start is fast.

A table lists the verbs of a group: section, name, module and attribute of the click command, and its line of help.
Thread-safety: one thread. Corresponds to MQAdminStartup's list of SubCommands.
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

    Verbs can also be added in the usual way (``@group.command()``).
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
        """Suggest similar names too: click suggests imported verbs only, and none before 8.4."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx))
            suggestion = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {name!r}.{suggestion}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Verbs added in the usual way are listed in the first section.
        ordinary = [(name, command.get_short_help_str(200)) for name, command in self.commands.items()]
        width = max(len(name) for name in self.list_commands(ctx))
        for title, verbs in self.sections.items():
            rows = [*ordinary, *((name, line) for name, (_, line) in verbs.items())]
            ordinary = []
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in rows])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Complete names with their lines of help, without importing the verbs."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        lines = {name: line for name, (_, line) in self._lazy.items()}
        lines |= {name: command.get_short_help_str(60) for name, command in self.commands.items()}
        return [
            click.shell_completion.CompletionItem(name, help=line)
            for name, line in lines.items()
            if name.startswith(incomplete)
        ]
