"""``rocket completion SHELL``: the script with which bash, zsh or fish completes verbs, options, topics and groups.

Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import click

_HOW = {
    "bash": 'eval "$(rocket completion bash)"    in ~/.bashrc',
    "zsh": 'eval "$(rocket completion zsh)"     in ~/.zshrc, after compinit',
    "fish": "rocket completion fish > ~/.config/fish/completions/rocket.fish",
}


@click.command(
    epilog="\b\n" + "\n".join(_HOW.values()),
)
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(shell: str) -> None:
    """Print the script with which a shell completes verbs, options, and the names of topics and groups."""
    from click.shell_completion import get_completion_class

    from spark_rocket.cli.main import COMPLETE_VARIABLE, rocket

    maker = get_completion_class(shell)
    assert maker is not None
    click.echo(maker(rocket, {}, "rocket", COMPLETE_VARIABLE).source())
