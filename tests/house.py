"""What tests of several rooms ask alike."""

import json
from pathlib import Path
from typing import Any


def one_clear_line(err: str) -> bool:
    """What every complaint must be: one line that starts with the program's name; no traceback."""
    lines = err.strip().splitlines()
    return len(lines) == 1 and lines[0].startswith("snugnet: ") and "Traceback" not in err


def journal_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a journal without their checksums, whatever work it belongs to."""
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return [{name: value for name, value in row.items() if name != "crc"} for row in rows]
