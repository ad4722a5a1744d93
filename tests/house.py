"""What tests of several rooms ask alike."""


def one_clear_line(err: str) -> bool:
    """What every complaint must be: one line that starts with the program's name; no traceback."""
    lines = err.strip().splitlines()
    return len(lines) == 1 and lines[0].startswith("snugnet: ") and "Traceback" not in err
