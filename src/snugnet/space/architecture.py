"""One network of a space: a frozen, hashable value that is passed, never set.

Text form, made for people and diffs:

    r224 c32 | c16 k3e1 | c24 k5e3 k5e3s | c40 2*k5e3 | f1280

input resolution and stem width; per stage its width and its blocks (kernel, expansion, `s` for SE, `:83` for a middle
width that is not the choice's own, `3*` for three alike); features before the classifier. The JSON form says the same in
words. Both are syntax here; whether the value belongs to a space is `check`'s word, and it names the place.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from snugnet.errors import BadArchitecture
from snugnet.space.space import BlockChoice, SearchSpace

_BLOCK = re.compile(r"(?:(\d+)\*)?k(\d+)e(\d+(?:\.\d+)?)(s?)(?::(\d+))?")
_REMEDY = "Write it like 'r224 c32 | c16 k3e1 | c24 k5e3 k5e3s | f1280'."
_MAX_BLOCKS = 1000  # of one stage: a bound on what a mistyped repeat can ask for


@dataclass(frozen=True, kw_only=True)
class Block:
    """What one block is: kernel, expansion, SE on or off, and its middle width where the space leaves that open."""

    kernel: int
    expand: float
    se: bool = False
    mid_channels: int | None = None

    @classmethod
    def of(cls, choice: BlockChoice, mid_channels: int | None = None) -> Block:
        """The block that takes `choice`, at a middle width where the choice leaves that open."""
        return cls(kernel=choice.kernel, expand=float(choice.expand), se=bool(choice.se), mid_channels=mid_channels)

    def __str__(self) -> str:
        text = f"k{self.kernel}e{self.expand:g}{'s' if self.se else ''}"
        return text if self.mid_channels is None else f"{text}:{self.mid_channels}"


@dataclass(frozen=True, kw_only=True)
class StageChoice:
    """Width and blocks of one stage; its depth is the number of blocks."""

    width: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A whole network: input resolution, stem width, stages, head width."""

    resolution: int
    stem: int
    stages: tuple[StageChoice, ...]
    head: int

    def __str__(self) -> str:
        parts = [f"r{self.resolution} c{self.stem}"]
        for stage in self.stages:
            runs = [(len(list(run)), block) for block, run in itertools.groupby(stage.blocks)]
            words = [f"{n}*{block}" if n > 1 else str(block) for n, block in runs]
            parts.append(" ".join([f"c{stage.width}", *words]))
        return " | ".join([*parts, f"f{self.head}"])

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(len(stage.blocks) for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        stages = []
        for stage in self.stages:
            blocks = []
            for block in stage.blocks:
                words: dict[str, Any] = {"kernel": block.kernel, "expand": block.expand, "se": block.se}
                blocks.append(words if block.mid_channels is None else {**words, "middle": block.mid_channels})
            stages.append({"width": stage.width, "blocks": blocks})
        return {"resolution": self.resolution, "stem": self.stem, "stages": stages, "head": self.head}


def parse(text: str, space: SearchSpace) -> Architecture:
    """The architecture that `text` describes, checked against `space`."""
    architecture = read_text_form(text)
    check(architecture, space)
    return architecture


def from_json(value: Any, space: SearchSpace) -> Architecture:
    """The architecture in a JSON object made by `Architecture.to_json`, checked against `space`."""
    architecture = read_json_form(value)
    check(architecture, space)
    return architecture


def read_text_form(text: str) -> Architecture:
    """Syntax only: the value `text` describes, in whatever space."""
    parts = [part.split() for part in text.strip().split("|")]
    if len(parts) < 3:
        _malformed("an architecture needs stem, stages and head, separated by '|'", text)
    first, last = parts[0], parts[-1]
    if len(first) != 2 or len(last) != 1:
        _malformed("an architecture starts with 'r<resolution> c<width> |' and ends with '| f<features>'", text)
    stages = []
    for number, words in enumerate(parts[1:-1], 1):
        if len(words) < 2:
            _malformed(f"stage {number} needs a width and at least one block", " ".join(words))
        blocks: list[Block] = []
        for word in words[1:]:
            blocks += _block(word, number)
        if len(blocks) > _MAX_BLOCKS:
            _malformed(f"stage {number} may have at most {_MAX_BLOCKS} blocks", len(blocks))
        stages.append(StageChoice(width=_number(words[0], "c", f"width of stage {number}"), blocks=tuple(blocks)))
    return Architecture(
        resolution=_number(first[0], "r", "resolution"),
        stem=_number(first[1], "c", "stem width"),
        stages=tuple(stages),
        head=_number(last[0], "f", "head width"),
    )


def read_json_form(value: Any) -> Architecture:
    """Syntax only: the value a JSON object describes, in whatever space."""
    try:
        read = _ArchitectureFile.model_validate(value)
    except ValidationError as error:
        raise _complaint(error) from error
    stages = []
    for stage in read.stages:
        blocks = [Block(kernel=b.kernel, expand=b.expand, se=b.se, mid_channels=b.middle) for b in stage.blocks]
        stages.append(StageChoice(width=stage.width, blocks=tuple(blocks)))
    return Architecture(resolution=read.resolution, stem=read.stem, stages=tuple(stages), head=read.head)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _BlockFile(_Strict):
    kernel: int
    expand: float
    se: bool
    middle: int | None = None


class _StageFile(_Strict):
    width: int
    blocks: list[_BlockFile]


class _ArchitectureFile(_Strict):
    resolution: int
    stem: int
    stages: list[_StageFile]
    head: int


def _complaint(error: ValidationError) -> BadArchitecture:
    """The first mistake, with its place in the words of the text form: stages and blocks count from 1."""
    first, words = error.errors()[0], ["architecture"]
    for part in first["loc"]:
        if isinstance(part, int):
            words[-1] = f"{words[-1].removesuffix('s')} {part + 1}"
        else:
            words.append(part)
    what = ", ".join(words)
    if first["type"] == "missing":
        return BadArchitecture(f"{what} is missing", remedy=_REMEDY)
    if first["type"] == "extra_forbidden":
        return BadArchitecture(f"{what} is not a field that is known there", remedy=_REMEDY)
    return BadArchitecture(f"{what}: {first['msg']}", value=first["input"], remedy=_REMEDY)


def check(architecture: Architecture, space: SearchSpace) -> None:
    """Raise `BadArchitecture`, naming the place, unless `architecture` belongs to `space`."""
    _member("resolution", architecture.resolution, space.resolutions, space)
    _member("stem width", architecture.stem, space.stem.widths, space)
    _member("number of stages", len(architecture.stages), (len(space.stages),), space)
    before = architecture.stem
    for number, (made, stage) in enumerate(zip(architecture.stages, space.stages), 1):
        _member(f"width of stage {number}", made.width, stage.widths, space)
        _member(f"depth of stage {number}", len(made.blocks), stage.depths, space)
        for position, block in enumerate(made.blocks, 1):
            in_channels = before if position == 1 else made.width
            _check_block(block, in_channels, stage.choices_at(position - 1), f"stage {number}, block {position}", space)
        if stage.per == "stage" and len(set(made.blocks)) > 1:
            _outside(f"stage {number}: all blocks must be alike", " ".join(map(str, made.blocks)), space)
        before = made.width
    _member("head width", architecture.head, space.head.widths, space)


def find_choice(block: Block, choices: tuple[BlockChoice, ...]) -> BlockChoice | None:
    """The one of `choices` (of its position) that `block` is, or None if there is none."""
    for choice in choices:
        if (choice.kernel, choice.expand, bool(choice.se)) == (block.kernel, block.expand, block.se):
            return choice
    return None


def _check_block(
    block: Block, in_channels: int, choices: tuple[BlockChoice, ...], place: str, space: SearchSpace
) -> None:
    choice = find_choice(block, choices)
    if choice is None:
        offered = ", ".join(c.label for c in choices)
        raise BadArchitecture(
            f"{place} must be one of the choices of space {space.name!r}",
            value=str(block),
            remedy=f"Offered there: {offered}.",
        )
    if (block.mid_channels is None) != (choice.expand_range is None):
        rule = "needs a middle width (':83')" if choice.expand_range else "has no free middle width"
        _outside(f"{place} {rule}", str(block), space)
    if block.mid_channels is not None:
        mid_range = space.mid_range(choice, in_channels)
        if block.mid_channels not in mid_range:
            _outside(
                f"{place}: middle width must be {mid_range.start} to {mid_range.stop - 1}",
                block.mid_channels,
                space,
            )


def _block(word: str, stage: int) -> list[Block]:
    match = _BLOCK.fullmatch(word)
    if match is None:
        _malformed(f"stage {stage}: a block is written like k5e6s, k3e3s:83 or 3*k3e4", word)
    repeat = int(match[1]) if match[1] else 1
    if not 1 <= repeat <= _MAX_BLOCKS:
        _malformed(f"stage {stage}: a repeat must be 1 to {_MAX_BLOCKS}", word)
    expand = float(match[3])
    mid_channels = int(match[5]) if match[5] else None
    return [Block(kernel=int(match[2]), expand=expand, se=bool(match[4]), mid_channels=mid_channels)] * repeat


def _number(word: str, letter: str, what: str) -> int:
    if not re.fullmatch(letter + r"\d{1,9}", word):
        _malformed(f"{what} is written {letter}<number>", word)
    return int(word[1:])


def _member(what: str, value: int, known: tuple[int, ...], space: SearchSpace) -> None:
    if value not in known:
        _outside(f"{what} must be {' or '.join(map(str, known))}", value, space)


def _outside(rule: str, value: object, space: SearchSpace) -> NoReturn:
    raise BadArchitecture(
        f"{rule} in space {space.name!r}", value=value, remedy=f"See `snugnet show {space.name}` for what it offers."
    )


def _malformed(rule: str, value: object) -> NoReturn:
    raise BadArchitecture(rule, value=value, remedy=_REMEDY)
