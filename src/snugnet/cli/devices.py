"""`snugnet devices`: where networks can be measured on this machine."""

from __future__ import annotations

from dataclasses import asdict

from snugnet.cli.printing import Json, print_json, print_table
from snugnet.devices.device import processor
from snugnet.devices.registry import listing


def devices(json: Json = False) -> None:
    """List the devices and runtimes, and what is missing for those that cannot be used here."""
    rows = listing()
    if json:
        print_json([asdict(row) for row in rows])
        return
    cells = [
        [row.name, "yes" if row.here else "no", ", ".join(row.precisions), row.reason and f"{row.reason}: {row.remedy}"]
        for row in rows
    ]
    print_table(
        f"Devices on this machine ({processor()})", ["name", "here", "precisions", "what is missing"], cells, left=4
    )
