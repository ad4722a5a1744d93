"""A dotted name is what it says: `import a.b.c as m` gives the module, for every module of the package.

A package that re-exports a function under its module's name hides the module: the statement then binds the function.
All modules are imported first, because what hides a module may only be bound by importing another one.
"""

import pkgutil
import subprocess
import sys

import snugnet

NAMES = [
    module.name
    for module in pkgutil.walk_packages(snugnet.__path__, "snugnet.")
    if not module.name.endswith("__main__")  # importing it runs the command line
    and module.name != "snugnet.timm"  # needs timm; tests/deploy/test_folder.py imports it where timm is
]
PROGRAM = """
import importlib, sys, types
for name in sys.argv[1:]:
    importlib.import_module(name)
for name in sys.argv[1:]:
    scope = {}
    exec(f"import {name} as module", scope)
    if not isinstance(scope["module"], types.ModuleType):
        print(name)
"""


def test_every_module_is_what_its_dotted_name_imports() -> None:
    assert len(NAMES) > 80
    hidden = subprocess.run(  # a process of its own: other tests' imports must not decide
        [sys.executable, "-c", PROGRAM, *NAMES], capture_output=True, text=True, check=False
    )
    assert hidden.returncode == 0, hidden.stderr
    assert hidden.stdout.split() == []
