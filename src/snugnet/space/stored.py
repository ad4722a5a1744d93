"""A whole space as plain JSON and back, exact for every space: what files keep that must know their space later.

The YAML form (`reading`) is for people and has no words for every space that presets and widths can make; this one is
for machines.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from snugnet.errors import BadSpace, DamagedFile
from snugnet.space.space import SearchSpace

_SPACE: TypeAdapter[SearchSpace] = TypeAdapter(SearchSpace)


def space_to_json(space: SearchSpace) -> dict[str, Any]:
    """Equal spaces give the same JSON: a factor of 2 and one of 2.0 are the same factor."""
    plain = _SPACE.dump_python(space, mode="json")
    value: dict[str, Any] = _SPACE.dump_python(_SPACE.validate_python(plain), mode="json")
    for stage in value["stages"]:
        if stage["per_position"] is None:  # said only where it is so: files of older spaces keep their fingerprints
            del stage["per_position"]
    return value


def space_from_json(value: Any, where: str) -> SearchSpace:
    """The space that `space_to_json` wrote; `where` is named if it is not whole."""
    try:
        return _SPACE.validate_python(value)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise DamagedFile(f"{where} must hold a whole space ({place})", remedy="Restore or remake it.") from error
    except BadSpace as error:
        raise DamagedFile(f"{where} must hold a sound space ({error.rule})", remedy="Restore or remake it.") from error
