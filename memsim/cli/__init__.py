"""The `memsim` command: one module per command, and one place that turns an error into an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from memsim import __version__
from memsim.errors import MemsimError

_COMMANDS = {
    "catalog": "memsim.cli.catalog",
    "dry-run": "memsim.cli.dry_run",
    "estimate": "memsim.cli.estimate",
    "gpus": "memsim.cli.gpus",
    "imaginary-gpu": "memsim.cli.imaginary_gpu",
    "optimizers": "memsim.cli.optimizers",
    "report": "memsim.cli.report",
    "simulate": "memsim.cli.simulate",
    "verify": "memsim.cli.verify",
}


class _LazyGroup(click.Group):
    """Imports a command's module when the command is used, so that each start pays for one command only."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = __import__(_COMMANDS[cmd_name], fromlist=["command"])
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS and not ctx.resilient_parsing:
            from memsim.errors import UnknownNameError

            raise UnknownNameError("command", args[0], _COMMANDS, f"Commands: {', '.join(sorted(_COMMANDS))}.")
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="memsim")
def cli() -> None:
    """How much GPU memory will this training step take, byte by byte, before anything runs.

    \b
    memsim estimate distilbert-base-cased --optimizer adamw_torch --optimizer adafactor
    memsim optimizers adamw_bnb_8bit
    memsim catalog llama
    """  # noqa: D301  (the \b is click's own mark: keep these lines as they are)


def main(args: list[str] | None = None) -> Any:
    """Run the command line; every error becomes one to three lines on stderr and an exit code."""
    try:
        cli.main(args=args, prog_name="memsim", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        sys.stdout = None
        sys.exit(0)
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("MEMSIM_DEBUG") == "1" and not isinstance(error, click.ClickException):
            raise
        message, exit_code = _ending(error)
        click.echo(message, err=True)
        sys.exit(exit_code)


def _ending(error: BaseException) -> tuple[str, int]:
    """Return what to say about an error, and the exit code."""
    if isinstance(error, MemsimError):
        return f"memsim: {error}", error.exit_code
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f"\nSee '{context.command_path} -h'." if context else ""
        return f"memsim: {error.format_message()}{hint}", error.exit_code
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return "interrupted", 130
    if isinstance(error, OSError):
        return f"memsim: {error.filename or 'the output'}: {error.strerror or error}.", 1
    return (
        f"memsim: unexpected {type(error).__name__}: {error}\n"
        "This is a bug in memsim. Run it again with MEMSIM_DEBUG=1 for the traceback and report it."
    ), 1
