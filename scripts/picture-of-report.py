#!/usr/bin/env python3
"""A picture of a report for the README: scripts/picture-of-report.py RUN/report.html OUT.png [--dark] [--width 390]"""

import argparse
import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "reporting"))
from browser import Browser, find_chromium


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("page", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--dark", action="store_true")
    arguments.add_argument("--width", type=int, default=1100)
    arguments.add_argument("--height", type=int, default=1500, help="cut the page below this; 0 keeps all of it")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as profile, Browser(find_chromium(), Path(profile)) as browser:
        browser.open(asked.page, width=asked.width, dark=asked.dark)
        browser.picture(asked.out)
    if asked.height:
        whole = Image.open(asked.out)
        whole.crop((0, 0, whole.width, min(asked.height, whole.height))).save(asked.out, optimize=True)


if __name__ == "__main__":
    main()
