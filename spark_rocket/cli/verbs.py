"""A group of verbs that imports the module of a verb when the verb is used, so that every start is fast.

A table lists the verbs of a group: section, name, module and attribute of the click command, and its line of help.
An unknown verb gets suggestions: similar verbs of its group, verbs of that name in other groups (``rocket lag``:
``rocket group lag``), and the verbs that other tools call so (``other_tools.py``). An unknown option gets the commands
that have it, derived from their declarations.

Thread-safety: one thread. Corresponds to MQAdminStartup's list of SubCommands.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import click

_MAX_SUGGESTIONS = 4
_SIMILAR = 0.8  # one letter of six wrong, missing or extra, or two exchanged
_ONE: Mapping[str, Mapping[str, tuple[str, str]]] = {"Commands": {}}
Verbs = Mapping[str, tuple[str, str]]
"""Name to (``module:attribute``, one line of help)."""


class VerbGroup(click.Group):
    """``VerbGroup(sections={"Servers": {"up": ("spark_rocket.cli.servers.up:up", "…")}})``

    Verbs can also be added in the usual way (``@group.command()``). ``aliases``: other names of verbs of any group, by
    module and attribute; they work, but nothing lists them.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Verbs] = _ONE, aliases: Mapping[str, str] = {}, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self._aliases = aliases
        self._lazy = {name: verb for verbs in sections.values() for name, verb in verbs.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *(name for name in super().list_commands(ctx) if name not in self._lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._lazy[cmd_name][0] if cmd_name in self._lazy else self._aliases.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            from spark_rocket.cli.other_tools import counterpart

            reason = counterpart(name)
            if isinstance(reason, str):
                ctx.fail(f"No such command {name!r}. {reason}")
            meant = " or ".join(map(repr, self.suggestions(ctx, name)))
            ctx.fail(f"No such command {name!r}.{f' Did you mean {meant}?' if meant else ''}")
        return super().resolve_command(ctx, args)

    def suggestions(self, ctx: click.Context, name: str) -> list[str]:
        """Return the command lines that the user may mean, the most likely ones first."""
        from spark_rocket.cli.other_tools import RELATED, counterpart

        root = ctx.find_root()
        elsewhere = counterpart(name)
        similar = [] if elsewhere else get_close_matches(name, self.list_commands(ctx))
        near = [f"{ctx.command_path} {verb}" for verb in similar]
        same = [path for path, verb, _ in _commands(root) if verb == name]
        others = RELATED.get(name.lower().replace("_", "-")) or (() if isinstance(elsewhere, str) else elsewhere) or ()
        related = [f"{root.command_path} {line}" for line in others]
        lines = dict.fromkeys([*related, *same, *near])
        own = [line for line in lines if line.startswith(f"{ctx.command_path} ")]
        return (own if own and ctx is not root else list(lines))[:_MAX_SUGGESTIONS]

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


def commands_with(option: str, context: click.Context) -> list[str]:
    """Return the command lines that the user of an unknown option may mean.

    They have the option, or take its name as an argument and have it in their own name (``--key``: ``message query-key
    KEY``). Commands of the same group come first, then commands of the same name. An argument of that name, or a
    similar option, of the command itself is more likely than all of them.
    """
    word = option.lstrip("-").replace("-", "_")
    here = context.command_path
    if own := [each for each in context.command.params if isinstance(each, click.Argument) and each.name == word]:
        return [f"{here} {own[0].human_readable_name}"]
    if near := get_close_matches(option, _options(context.command), cutoff=_SIMILAR):
        return [f"{here} {name}" for name in near]
    found: dict[str, int] = {}
    group = context.parent.command_path if context.parent is not None else ""
    for path, name, command in _commands(context.find_root()):
        if path == here or isinstance(command, click.Group):
            continue
        in_group = path.startswith(f"{group} ")
        if option in _options(command):
            found[f"{path} {option}"] = 4 * (not in_group) + 2 * (name != context.info_name)
        elif word in name.split("-") and any(parameter.name == word for parameter in command.params):
            found[path] = 4 * (not in_group) + 1
    return sorted(found, key=found.__getitem__)[:_MAX_SUGGESTIONS]


def _options(command: click.Command) -> list[str]:
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    return [name for option in options for name in option.opts]


def _commands(context: click.Context) -> Iterator[tuple[str, str, click.Command]]:
    """Yield all commands below a group, with their command lines and names."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{context.command_path} {name}", name, command
        if isinstance(command, click.Group):
            yield from _commands(click.Context(command, parent=context, info_name=name))
