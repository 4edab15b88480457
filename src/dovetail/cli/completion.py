"""``dovetail completion``: the script by which a shell completes commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from dovetail.cli.command import Command
from dovetail.cli.group import COMPLETE, group


@click.command(
    cls=Command,
    examples={
        'eval "$(dovetail completion bash)"': "For this shell; put it into ~/.bashrc for all.",
        'eval "$(dovetail completion zsh)"': "The same for zsh, in ~/.zshrc.",
        "dovetail completion fish > ~/.config/fish/completions/dovetail.fish": "For fish.",
    },
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print what makes a shell complete this command: subcommands, options, backends, files."""
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"click has no completion for {shell}")
    print(found(group, {}, "dovetail", COMPLETE).source())
    return 0
