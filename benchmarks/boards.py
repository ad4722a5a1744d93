"""Tables through an agent against tables in process: the way to a board must be in no time.

    python benchmarks/boards.py [--rounds 2] [--seconds 20] [--json] [--out benchmarks/results/boards-DATE.json]

The same small space (`hardcore-lowres`) is measured with ONNX Runtime in this process, through the agent as a process and
through the agent behind an OpenSSH server on 127.0.0.1 (left out where there is none), in turns, `rounds` times. The tables
of a way are taken together by the geometric mean, since a shared machine has slow minutes. Reported for each way against
in process: `ratio` (median over 24 networks of predicted costs) and `r2` of these, which are to be within 0.95-1.05 and
at least 0.97; the same over the parts timed by themselves; and, as a yardstick, the last round in process against the first.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import snugnet as sn
from snugnet.costs.measure import spread_networks
from snugnet.costs.table import CostTable
from snugnet.devices import Command, Device, OnnxRuntime
from snugnet.devices.timing import TimingSettings
from snugnet.space import plan, preset
from snugnet.store import write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import ssh_server

SPACE = "hardcore-lowres"
NETWORKS = 24
AGENT = [sys.executable, "-P", str(Path(sn.__file__).with_name("devices") / "agent.py")]


@contextlib.contextmanager
def ways() -> Iterator[dict[str, Device]]:
    """The devices to compare; all of them are this machine."""
    with contextlib.ExitStack() as stack:
        devices: dict[str, Device] = {"in_process": OnnxRuntime(), "process": Command(command=shlex.join(AGENT))}
        if reason := ssh_server.missing():
            print(f"without SSH: {reason}", file=sys.stderr)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ssh = stack.enter_context(ssh_server.ssh_server(folder))
            devices["ssh"] = Command(command=f"{ssh} {shlex.quote(shlex.join(AGENT))}")
        yield devices


def agreement(ours: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    scatter = float(((reference - reference.mean()) ** 2).sum())
    r2 = 1 - float(((ours - reference) ** 2).sum()) / scatter
    return {"ratio": round(float(np.median(ours / reference)), 4), "r2": round(r2, 4)}


def costs_of(table: CostTable) -> dict[str, np.ndarray]:
    """What a table says of whole networks, and of the parts by themselves (milliseconds)."""
    space = preset(SPACE)
    chosen = spread_networks(space, NETWORKS, np.random.default_rng(24))
    networks = [table.of_network(plan(architecture, space)) for architecture in chosen]
    return {"networks": np.array(networks), "parts": np.array([ms for ms, _, _ in table.isolated_ms.values()])}


def main() -> None:
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each table")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / f"boards-{date}.json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, np.ndarray]]] = {}
    load = os.getloadavg()
    with ways() as devices:
        for number in range(chosen.rounds):
            for way, device in devices.items():
                settings = TimingSettings(seconds=chosen.seconds, seed=number)
                table = sn.measure(preset(SPACE), device, settings=settings)
                found.setdefault(way, []).append(costs_of(table))
                print(f"round {number + 1}, {way}: {table.origin['message']}", file=sys.stderr, flush=True)
        fingerprint = devices["process"].fingerprint()
    together = {
        way: {kind: np.exp(np.mean([np.log(row[kind]) for row in rows], axis=0)) for kind in ("networks", "parts")}
        for way, rows in found.items()
    }
    outcome: dict[str, Any] = {"date": date, "space": SPACE, "rounds": chosen.rounds, "seconds": chosen.seconds}
    for way in list(together)[1:]:
        outcome[way] = {
            **agreement(together[way]["networks"], together["in_process"]["networks"]),
            "parts": agreement(together[way]["parts"], together["in_process"]["parts"]),
            "by_round": [agreement(a["networks"], b["networks"]) for a, b in zip(found[way], found["in_process"])],
        }
    first, last = found["in_process"][0], found["in_process"][-1]
    outcome["in_process_last_against_first"] = agreement(last["networks"], first["networks"])
    outcome["meets_the_goal"] = all(
        0.95 <= outcome[way]["ratio"] <= 1.05 and outcome[way]["r2"] >= 0.97 for way in list(together)[1:]
    )
    outcome |= {"load": [round(load[0], 1), round(os.getloadavg()[0], 1)], "fingerprint": fingerprint}
    write_json(chosen.out, outcome)
    if chosen.json:
        print(json.dumps(outcome, indent=1))
    else:
        for way in list(together)[1:]:
            print(f"{way}: ratio {outcome[way]['ratio']}, r2 {outcome[way]['r2']}")


if __name__ == "__main__":
    main()
