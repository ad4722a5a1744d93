"""`snugnet devices`: where networks can be measured on this machine."""

from __future__ import annotations

from dataclasses import asdict

from rich.markup import escape

from snugnet.cli.printing import Json, print_json, print_table


def devices(json: Json = False) -> None:
    """List the devices and runtimes, and what is missing for those that cannot be used here."""
    from snugnet.devices import listing
    from snugnet.devices.device import processor  # these bring torch in: not for `snugnet --help`

    rows = listing()
    if json:
        print_json([asdict(row) for row in rows])
        return
    cells = []
    for row in rows:
        missing = escape(f"{row.reason}. {row.remedy}") if row.reason else ""
        cells.append([row.name, "yes" if row.here else "no", ", ".join(row.precisions), missing])
    print_table(
        f"Devices on this machine ({processor()})", ["name", "here", "precisions", "what is missing"], cells, left=4
    )
