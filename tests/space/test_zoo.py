"""Our counts against the papers'. The reference figures were recounted block by block from the published tables."""

import pytest

from snugnet.costs.analytic import macs, params
from snugnet.errors import UnknownName
from snugnet.space import check, preset, zoo

TF_NAS = {
    "TF-NAS-A": (456.748, 8.7575),
    "TF-NAS-B": (360.524, 7.3528),
    "TF-NAS-C": (284.418, 6.3609),
    "TF-NAS-D": (218.800, 3.3199),
    "TF-NAS-A-wose": (512.881, 5.7205),
    "TF-NAS-B-wose": (432.786, 5.3014),
    "TF-NAS-C-wose": (315.474, 3.8312),
    "TF-NAS-D-wose": (285.795, 4.2774),
    "TF-NAS-CPU-A": (305.091, 7.1333),
    "TF-NAS-CPU-B": (230.663, 4.8596),
    "TF-NAS-MBV2-A": (444.896, 4.7588),
    "TF-NAS-MBV2-B": (296.521, 3.8260),
}
ATTENTIVE = {
    "A0": (203.39, 8.954),
    "A1": (279.24, 9.453),
    "A2": (316.73, 11.15),
    "A3": (356.52, 12.785),
    "A4": (443.53, 11.81),
    "A5": (490.52, 12.598),
    "A6": (709.01, 15.155),
    "A5-small": (491.48, 12.971),
    "A5-base": (594.79, 12.404),
}
HARDCORE = {"A": 5.3, "B": 5.2, "C": 5.5, "D": 7.5, "E": 8.1, "F": 8.2}


@pytest.mark.parametrize("name", TF_NAS)
def test_tfnas_in_its_own_convention(name):
    entry = zoo.find(name)
    assert entry.convention == "tfnas"
    assert macs(entry.network, "tfnas") / 1e6 == pytest.approx(TF_NAS[name][0], rel=1e-4)
    assert params(entry.network) / 1e6 == pytest.approx(TF_NAS[name][1], rel=1e-4)


@pytest.mark.parametrize("name", ATTENTIVE)
def test_attentive_networks(name):
    entry = zoo.find(f"AlphaNet-{name}")
    assert macs(entry.network) / 1e6 == pytest.approx(ATTENTIVE[name][0], rel=1e-4)
    assert params(entry.network) / 1e6 == pytest.approx(ATTENTIVE[name][1], rel=1e-4)
    if "-" not in name:
        assert zoo.find(f"attentivenas-{name}").network == entry.network


@pytest.mark.parametrize("name", HARDCORE)
def test_hardcore_networks(name):
    entry = zoo.find(f"HardCoRe-{name}")
    assert entry.space == "hardcore"
    assert round(params(entry.network) / 1e6, 1) == HARDCORE[name]


@pytest.mark.parametrize(
    ("name", "mparams", "mmacs"),
    [
        ("MobileNetV2-1.0", 3.504872, 300.774),
        ("MobileNetV2-1.4", 6.108776, None),
        ("MobileNetV3-Large", 5.483032, 216.590),
        ("EfficientNet-B0", 5.288548, 385.815),
        ("MnasNet-B1", 4.383312, None),
    ],
)
def test_baselines(name, mparams, mmacs):
    entry = zoo.find(name)
    assert params(entry.network) / 1e6 == mparams
    if mmacs is not None:
        assert macs(entry.network) / 1e6 == pytest.approx(mmacs, abs=5e-4)


def test_searched_networks_are_members_of_their_spaces():
    members = [entry for entry in zoo.networks().values() if entry.space]
    assert len(members) == 6 + 12 + 7 + 9
    for entry in members:
        assert entry.architecture is not None
        check(entry.architecture, preset(entry.space))


def test_names_ignore_case_and_offer_the_nearest():
    assert zoo.find("hardcore-a").name == "HardCoRe-A"
    with pytest.raises(UnknownName, match="Did you mean 'TF-NAS-A'"):
        zoo.find("tfnas-a")
