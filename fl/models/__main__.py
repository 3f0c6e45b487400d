"""`python -m fl.models` prints the models' sizes beside the FedMHO paper's Table 2."""

from rich import box
from rich.console import Console
from rich.table import Table

from fl.models.cost import ROWS, as_printed, count
from fl.own_process import run_as_command


def main() -> None:
    """Prints the table that is in docs/methods/models.md."""
    table = Table(
        "Model", "Data set", "Parameters", "MACs", "Profiler", "Paper", "By", box=box.MARKDOWN
    )
    for row in ROWS:
        counted = count(row)
        figures = (as_printed(counted.macs, row.paper), as_printed(counted.ops, row.paper))
        table.add_row(
            row.model, row.data_set, f"{counted.parameters:,}", *figures, row.paper, row.note
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    run_as_command(main)
