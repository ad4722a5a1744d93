"""Who may import whom. A forbidden arrow is drawn: file:line  room --> room."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "snugnet"
FOUNDATION = {"errors", "units", "store", "progress", "seeds", "executors", "ray_executor"}
ROOMS = (  # data flows down this list, imports go up it only
    "space",
    "solve",
    "devices",
    "data",
    "nets",
    "costs",
    "budgets",
    "evaluate",
    "training",
    "searching",
    "deploy",
    "reporting",
    "fitting",
    "cli",
)
ALLOWED = {room: set(ROOMS[:number]) for number, room in enumerate(ROOMS)}
ALLOWED["timm"] = {"space", "nets"}  # opened by timm's users, who need no more of us
ALLOWED["solve"] = ALLOWED["devices"] = ALLOWED["data"] = set()  # numbers, machines and images know no networks
NO_TORCH = {"space", "solve", "budgets", "errors", "units", "store", "progress"}


def imports(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: absolute imports only, so that arrows can be read"
            found.append((node.lineno, node.module or ""))
            found += [(node.lineno, f"{node.module}.{a.name}") for a in node.names if node.module == "snugnet"]
    return found


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def forbidden_arrows(source: Path = SOURCE) -> list[str]:
    arrows = []
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        for line, module in imports(path):
            parts = module.split(".")
            if parts[0] == "torch" and room in NO_TORCH:
                arrows.append(f"{path.relative_to(source)}:{line}  {room} --> torch")
            if parts[0] != "snugnet" or len(parts) < 2:
                continue
            other = parts[1]
            if other == room or other in FOUNDATION or other == "__version__":
                continue
            if room in FOUNDATION or other not in ALLOWED[room]:
                arrows.append(f"{path.relative_to(source)}:{line}  {room} --> {other}")
    return arrows


def test_imports_flow_one_way():
    arrows = forbidden_arrows()
    assert not arrows, "forbidden arrows:\n" + "\n".join(arrows)


def test_a_forbidden_arrow_is_seen(tmp_path):
    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "bad.py").write_text("import torch\nfrom snugnet.nets import build\n")
    assert forbidden_arrows(tmp_path) == ["space/bad.py:1  space --> torch", "space/bad.py:2  space --> nets"]


def test_every_room_is_known():
    rooms = {room_of(p) for p in SOURCE.rglob("*.py")} - {"__init__", "__main__"} - FOUNDATION
    assert rooms <= set(ALLOWED), f"rooms without a rule: {rooms - set(ALLOWED)}"
