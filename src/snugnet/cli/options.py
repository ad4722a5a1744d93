"""Options that several verbs have: those of a device."""

from __future__ import annotations

from typing import Annotated

import typer

DeviceName = Annotated[str, typer.Option("--device", help="Where to run: see `snugnet devices`.")]
Threads = Annotated[int, typer.Option("--threads", help="Threads of the processor to use.")]
Precision = Annotated[str, typer.Option("--precision", help="Number format, where the device offers several.")]
Batch = Annotated[int, typer.Option("--batch", help="Images at once.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Most time to spend timing.")]
