"""What the networks of a run cost, and what they may: its devices and tables, its budget in absolute units, certificates.

A limit with a label (`latency@phone`) is measured, checked and certified on the device of that label. Percentages of a
latency are of the largest network by the same table, or of the starting network as measured.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import cached_property
from pathlib import Path
from typing import Any, final

from snugnet.budgets import Budget
from snugnet.budgets.limits import EXACT
from snugnet.costs.check import check_table
from snugnet.costs.lazy import measure_lazily
from snugnet.costs.measure import measure
from snugnet.costs.measure_many import measure_by
from snugnet.costs.table import CostTable, exact_table, open_table
from snugnet.data.dataset import Data
from snugnet.deploy.card import Certificate, read_certificate
from snugnet.deploy.certificate import OpensOnnx, certify
from snugnet.deploy.export import stamp
from snugnet.deploy.int8 import export_int8
from snugnet.deploy.network_file import load
from snugnet.devices import OnnxRuntime, by_name
from snugnet.devices.device import Device
from snugnet.devices.timing import TimingSettings
from snugnet.fitting.places import label_of, places_of, referred, step_of, table_file
from snugnet.fitting.recipe import Recipe
from snugnet.nets import build
from snugnet.progress import Progress
from snugnet.searching.context import search_context
from snugnet.space.sampling import largest
from snugnet.space.space import SearchSpace
from snugnet.store import Say, StepCache, read_json, write_json
from snugnet.units import show


@final
class RunCosts:
    """Of one recipe in one folder. The constructor refuses what can be refused before any measuring."""

    def __init__(
        self, recipe: Recipe, folder: Path, space: SearchSpace, *, steps: StepCache, progress: Progress
    ) -> None:
        self.recipe, self.folder, self.space, self.steps, self.progress = recipe, folder, space, steps, progress
        self._devices: dict[str, Device] = {}
        self.budget = Budget(recipe.budget)
        self.places = places_of(recipe, self.budget)
        exact = Budget({name: text for name, text in self.budget.items() if name in EXACT})
        search_context(space, [], exact)

    @cached_property
    def tables(self) -> dict[str, CostTable]:
        """Every latency limit's own measured table, exact tables for the others."""
        return {
            name: open_table(self.folder / table_file(name), progress=self.progress).for_statistic(
                self.budget.statistic(name)
            )
            if name in self.places
            else exact_table(self.space, name)
            for name in self.budget
        }

    def device(self, name: str) -> Device:
        """Where a latency limit is measured."""
        if name not in self._devices:
            section = self.places[name]
            self._devices[name] = by_name(section.device, threads=section.threads, precision=section.precision)
        return self._devices[name]

    @property
    def devices(self) -> dict[str, Device]:
        """By label: what a certificate measures on."""
        return {label_of(name): self.device(name) for name in self.places}

    @cached_property
    def promised(self) -> Budget:
        """The budget in absolute units: percentages of the largest network by the same table. Infeasible ones raise."""
        return search_context(self.space, self.tables, self.budget).limits.absolute()

    @property
    def batch(self) -> int:
        """Images at a time when the network is measured; the same for all devices."""
        return next(iter(self.places.values()), self.recipe.measure).batch

    @property
    def files(self) -> list[str]:
        """The measured tables, by their names in the run folder."""
        return [table_file(name) for name in self.places]

    def measure_table(self, name: str, by: Executor | None = None) -> None:
        """The table of a latency limit; `by`: who measures it, if not this process (`costs.measure_many`)."""
        section, device, file = self.places[name], self.device(name), table_file(name)

        def work() -> str:
            table = measure_by(
                by,
                measure_lazily if section.lazy else measure,
                self.space,
                device,
                batch=section.batch,
                settings=TimingSettings(seconds=section.seconds),
                out=self.folder / file,
                source=self.recipe.source,
                progress=self.progress,
            )
            return f"{len(table.costs)} blocks on {section.device}, margin {table.margin:.1%}"

        settings = section.model_dump(exclude={"check"})  # how many networks check the table changes nothing in it
        inputs = [settings, device.fingerprint(), repr(self.space)]
        self.steps.step(step_of("measure", name), inputs, [file], work)

    def refer_to_start(self) -> None:
        """Percentages of a latency are of the starting network as measured, and become milliseconds here."""
        relative = [name for name in self.places if self.budget.is_relative(name)]
        if self.recipe.start is None or not relative:
            return

        def work() -> str:
            network = build(largest(self.space), self.space).eval()
            anything = dict.fromkeys(relative, "1000s")
            certificate = certify(network, anything, self.devices, batch=self.batch, progress=self.progress)
            write_json(self.folder / "reference.json", {line.name: line.measured for line in certificate.lines})
            measured = ", ".join(f"{line.name} {show(line.measured, line.name)}" for line in certificate.lines)
            return f"{self.recipe.source} at {self.space.resolutions[-1]} px takes {measured}"

        inputs = [{label: device.fingerprint() for label, device in self.devices.items()}, repr(self.space), self.batch]
        self.steps.step("reference", inputs, ["reference.json"], work)
        self.budget = referred(self.budget, read_json(self.folder / "reference.json"))

    def check(self, name: str) -> None:
        """The table of a latency limit against networks that it has not seen, if the recipe wants any."""
        networks, file = self.places[name].check, table_file(name).replace("table", "check")
        if not networks:
            return

        def work() -> str:
            device = self.device(name)
            check = check_table(self.tables[name], self.space, device, networks=networks, progress=self.progress)
            write_json(self.folder / file, check.to_json())
            return f"R2 {check.r2:.3f}, worst error {check.worst_error:.1%} on {len(check.networks)} unseen networks"

        inputs = [self.steps.hash_of(table_file(name)), networks]
        self.steps.step(step_of("check", name), inputs, [file], work)

    def certify(self, network: Any, out: Path, **options: Any) -> Certificate:
        """A network (or its file) measured against the whole budget; `BudgetExceeded` if it is over."""
        return certify(
            network,
            self.promised,
            self.devices,
            batch=self.batch,
            tables=self.tables,
            out=out,
            progress=self.progress,
            **options,
        )

    @property
    def int8(self) -> bool:
        """Whether the network will run in int8, wherever it is limited."""
        return bool(self.devices) and all(device.precision == "int8" for device in self.devices.values())

    def certify_shipped(self, data: Callable[[], Data], say: Say) -> Certificate:
        """Certify what will run: the ONNX file, in int8 if that was measured, which then carries the certificate's hash in
        its metadata (the weights stay what they are); on a device that opens no such files (PyTorch), the network itself."""
        path, proof, weights = (self.folder / f for f in ("network.onnx", "certificate.json", "network.safetensors"))
        if not all(isinstance(device, OpensOnnx) for device in self.devices.values()):
            return self.certify(weights, proof)
        accuracy = None
        if self.int8:
            options: dict[str, Any] = {"always": True, "progress": self.progress}
            if [type(device) for device in self.devices.values()] == [OnnxRuntime]:  # schemes are timed there
                (name,) = self.places
                options |= {"within": self.promised.amount(name, 0.0), "device": self.device(name)}
            small = export_int8(path, path.with_suffix(".int8.onnx"), data(), **options)
            say(f"{small.message} ({small.scheme})")
            path, accuracy = path.with_suffix(".int8.onnx"), small.accuracy
        certificate = self.certify(path, proof, plan=load(weights).plan, accuracy=accuracy)
        stamp(path, certificate_sha256=read_certificate(proof)["sha256"])
        return certificate
