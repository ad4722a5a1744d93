"""`snugnet spaces`: the search spaces that come with the package."""

from __future__ import annotations

from snugnet.cli.printing import Json, print_json, print_table
from snugnet.space.presets import PRESETS, names, preset


def spaces(json: Json = False) -> None:
    """List the search spaces that come with snugnet."""
    rows = []
    for name in names():
        space = preset(name)
        about = (PRESETS[name.removesuffix("-lowres")].__doc__ or "").strip().split("\n")[0]
        if name.endswith("-lowres"):
            about = f"The same for images of 28 to 64 pixels (here {', '.join(map(str, space.resolutions))})."
        rows.append(
            {"name": name, "count": space.count, "stages": len(space.stages), "resolutions": list(space.resolutions)}
            | {"about": about}
        )
    if json:
        print_json(rows)
        return
    cells = [[r["name"], r["about"], f"{float(str(r['count'])):.3g}"] for r in rows]
    print_table("Search spaces", ["name", "what it is", "networks"], [list(map(str, c)) for c in cells], left=2)
