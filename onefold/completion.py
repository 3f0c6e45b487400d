"""``onefold completion SHELL``: prints the script with which a shell completes on TAB."""

import sys
from collections.abc import Sequence

from fl.errors import UserError, error_line, unknown
from fl.own_process import prepare_process

SHELLS = ("bash", "zsh", "fish")
HELP = """usage: onefold completion {bash,zsh,fish}

Prints a script that has the shell complete onefold's commands, options and
their values on TAB. To try it, in bash or zsh, then in fish:

  eval "$(onefold completion bash)"
  onefold completion fish | source

To keep it, as a file that the shell reads, which is quicker than eval in a
profile. Do it again after an upgrade.

  bash  onefold completion bash >> ~/.bash_completion
  zsh   onefold completion zsh > ~/.onefold.zsh
        echo 'source ~/.onefold.zsh' >> ~/.zshrc
  fish  onefold completion fish > ~/.config/fish/completions/onefold.fish
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; 2 for a shell that is not known."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    try:
        print(script(arguments[0]), end="")
    except UserError as error:
        print(error_line(error), file=sys.stderr)
        return 2
    return 0


def script(shell: str) -> str:
    """The script for a shell.

    Raises:
        UserError: a shell that is not known.
    """
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    from onefold import shells  # late: it imports all of Onefold
    from onefold.words import words

    written: str = getattr(shells, shell)(words())
    return written


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
