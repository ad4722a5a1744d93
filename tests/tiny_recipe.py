"""The smallest run there is: a recipe and its space, for tests of several rooms."""

from pathlib import Path

RECIPE = """
name: tiny
data: {name: digits, resolution: 8}
space: {name: SPACE}
train:
  batch: 64
  eval_times: 1
  phases:
    - {method: multipath, epochs: 2, lr: 0.1, mixup: 0, auto_augment: null}
budget: {params: 70%, macs: 80%}
search: {method: instant, front: 3, options: {paths: 4, images: 64, evidence: 8, most_evidence: 8, candidates: 2}}
finetune: {epochs: 1, batch: 64, options: {lr: 0.02, mixup: 0, auto_augment: null}}
"""
SPACE = """
name: tiny
classes: 10
resolutions: [8]
stem: {widths: [8], stride: 1}
stages:
  - {width: 8, depth: [1, 2], stride: 2, kernels: [3, 5], expands: [1, 2]}
  - {width: 16, depth: [1, 2], stride: 2, kernels: [3, 5], expands: [2, 3], se: [off, on]}
head: {kind: conv-pool, widths: [32]}
"""


def recipe_in(folder: Path, text: str = RECIPE) -> Path:
    (folder / "space.yaml").write_text(SPACE)
    path = folder / "tiny.yaml"
    path.write_text(text.replace("SPACE", str(folder / "space.yaml")))
    return path
