"""The name of a run: one folder of the output directory, and never another place."""

from fl.errors import UserError

LONGEST_BYTES = 200
"""Below what file systems take, 255, for what is made of a name."""


def check_run_name(name: str) -> None:
    """Refuses a name that is no plain name of a folder.

    Raises:
        UserError: says what is allowed.
    """
    size = len(name.encode(errors="replace"))
    plain = name.isprintable() and "/" not in name and not name.startswith(".")
    if not plain or not name.strip() or size > LONGEST_BYTES:
        shown = repr(name if size <= LONGEST_BYTES else f"{name[:40]}...")
        raise UserError(
            f"name must be a folder's name of 1 to {LONGEST_BYTES} printable bytes, without / and "
            f"with no . in front, got {shown}"
        )
