"""Batch augmentation: what it may do, and that its seed decide everything."""

import pytest
import torch

from snugnet.data.augmentation import Augmentation, auto_augmented, mirrored, mixed, shifted
from snugnet.errors import UnknownName
from snugnet.seeds import Seed


@pytest.fixture
def images():
    return torch.randint(0, 256, (16, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_shift_moves_whole_images(images):
    moved = shifted(images, 2, torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    for i in range(16):
        windows = [padded[i, :, y : y + 12, x : x + 12] for y in range(5) for x in range(5)]
        assert sum(torch.equal(moved[i], window) for window in windows) == 1
    assert not torch.equal(moved, images)


def test_mirror_turns_about_half(images):
    turned = mirrored(images, torch.Generator().manual_seed(1))
    how = [(torch.equal(t, i), torch.equal(t, i.flip(-1))) for t, i in zip(turned, images)]
    assert all(same or flipped for same, flipped in how)
    assert 3 < sum(flipped for _, flipped in how) < 13


def test_mixup_blends_images_and_targets_alike():
    images, targets = torch.eye(8).view(8, 1, 2, 4), torch.eye(8)
    blended, soft = mixed(images, targets, 0.2, Seed(0))
    assert torch.allclose(blended.view(8, 8), soft) and torch.allclose(soft.sum(1), torch.ones(8))


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_auto_augment_is_seeded_bounded_and_leaves_the_global_generator_alone(images, policy):
    floats = images.float() / 255
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    results = [auto_augmented(floats, policy, Seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert results[0].shape == floats.shape and results[0].min() >= 0 and results[0].max() <= 1


def test_nothing_asked_nothing_done(images):
    floats, targets = Augmentation().apply(images, torch.arange(16) % 4, 4, Seed(0), lambda x: x)
    assert torch.equal(floats, images.float() / 255) and torch.equal(targets.argmax(1), torch.arange(16) % 4)


def test_unknown_policy():
    with pytest.raises(UnknownName, match="imagenet"):
        Augmentation(policy="imagnet").check()


def test_dice_depend_on_the_place_alone():
    seed = Seed(3).fold_in("step", 7)
    assert seed.numpy().random() == Seed(3).fold_in("step").fold_in(7).numpy().random()
    numbers = {Seed(s).fold_in(*w).number() for s in (0, 1) for w in (("a",), ("b",), ("a", 0), ("a", 1), (0,), ("0",))}
    assert len(numbers) == 12
