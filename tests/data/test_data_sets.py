"""Data sets: splits, damaged and missing files, folders of images."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import threading
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from snugnet.data import folder
from snugnet.data.dataset import load, resize, split_train_val
from snugnet.errors import BadInput, DamagedFile, DataMissing, UnknownName
from snugnet.seeds import Seed


def test_digits_are_split_once_and_for_all():
    data = load("digits", resolution=16)
    parts = [set(data.positions(split).tolist()) for split in ("train", "val", "test")]
    assert sum(len(part) for part in parts) == 1797 == len(set.union(*parts))
    assert len(parts[1]) == round(0.2 * (len(parts[0]) + len(parts[1])))
    assert data.identity() == load("digits", resolution=16).identity()
    other = load("digits", resolution=16, seed=1)
    assert not torch.equal(other.index["val"], data.index["val"])
    assert torch.equal(other.index["test"], data.index["test"])
    images, labels = next(data.fetch([data.positions("val")[:10]]))
    assert images.shape == (10, 3, 16, 16) and images.dtype == torch.uint8 and labels.dtype == torch.int64
    assert torch.bincount(data.labels[data.index["test"]], minlength=10).min() >= 34


def test_evaluation_batches_are_normalised_and_in_order():
    data = load("digits")
    images, labels = zip(*data.batches("train", 500))
    everything = torch.cat(images)
    assert abs(float(everything.mean())) < 0.02 and abs(float(everything.std()) - 1) < 0.02
    assert torch.equal(torch.cat(labels), data.labels[data.positions("train")])
    assert sum(len(part) for part, _ in data.batches("train", 500, limit=700)) == 700


def test_resize_repeats_or_interpolates():
    image = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    assert torch.equal(resize(image, 16)[..., ::2, 1::2], image)
    assert resize(image, 11).shape == (1, 1, 11, 11)
    assert resize(torch.full((1, 1, 8, 8), 255, dtype=torch.uint8), 5).unique().tolist() == [255]


def test_names_and_ranges():
    with pytest.raises(UnknownName, match="Did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(BadInput, match="resolution"):
        load("digits", resolution=2)
    with pytest.raises(BadInput, match="at least 5"):
        split_train_val(4, 0)


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def make_fashion(folder, rng):
    for name, count in (("train", 30), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))


def test_fashion_mnist_reads_idx_and_names_damage(tmp_path, rng):
    with pytest.raises(DataMissing, match="apt-get install dataset-fashion-mnist"):
        load("fashion-mnist", root=tmp_path)
    make_fashion(tmp_path, rng)
    data = load("fashion-mnist", root=tmp_path)
    assert {split: data.size(split) for split in ("train", "val", "test")} == {"train": 24, "val": 6, "test": 10}
    packed = tmp_path / "t10k-images-idx3-ubyte.gz"
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-40])
    with pytest.raises(DamagedFile, match="t10k-images-idx3-ubyte"):
        load("fashion-mnist", root=tmp_path)
    packed.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with pytest.raises(DamagedFile, match="must hold"):
        load("fashion-mnist", root=tmp_path)


def test_environment_names_the_place(tmp_path, rng, monkeypatch):
    (tmp_path / "fashion-mnist").mkdir()
    make_fashion(tmp_path / "fashion-mnist", rng)
    monkeypatch.setenv("SNUGNET_DATA", str(tmp_path))
    assert load("fashion-mnist").size("test") == 10


def binary_cifar(rng, name):
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    width, classes = 1, 10
    if name == "cifar100":
        files, width, classes = ["train.bin", "test.bin"], 2, 100
    made = {}
    for file in files:
        records = rng.integers(0, 256, (20, width + 3072), dtype=np.uint8)
        records[:, :width] = rng.integers(0, min(classes, 20), (20, width))
        made[file] = records
    return made


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("archive", [False, True])
def test_cifar_binary(tmp_path, rng, name, archive):
    with pytest.raises(DataMissing, match=r"curl -o .*binary.tar.gz"):
        load(name, root=tmp_path)
    made = binary_cifar(rng, name)
    if archive:
        with tarfile.open(tmp_path / f"cifar-{name[5:]}-binary.tar.gz", "w:gz") as tar:
            for file, records in made.items():
                info = tarfile.TarInfo(f"inner/{file}")
                info.size = records.nbytes
                tar.addfile(info, io.BytesIO(records.tobytes()))
    else:
        for file, records in made.items():
            (tmp_path / file).write_bytes(records.tobytes())
    data = load(name, root=tmp_path)
    first = next(iter(made.values()))
    width = 1 if name == "cifar10" else 2
    assert data.images[3].flatten().tolist() == first[3, width:].tolist()
    assert data.labels[:20].tolist() == first[:, width - 1].tolist()
    assert data.size("test") == 20


def test_cifar_sheets_and_refused_pickles(tmp_path, rng):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"x")
    with pytest.raises(DataMissing, match="pickle"):
        load("cifar10", root=tmp_path)
    package = tmp_path / "package"
    package.mkdir()
    pixels = rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        Image.fromarray(pixels.reshape(4, 1024, 3)).save(package / f"{name}.png")
    (package / "train_lables.json").write_text(json.dumps([1, 2, 3, 4] * 5))
    (package / "test_lables.json").write_text(json.dumps([9, 8, 7, 6]))
    data = load("cifar10", root=tmp_path)
    assert torch.equal(data.images[5].permute(1, 2, 0), torch.from_numpy(pixels[1]))
    assert data.labels[-4:].tolist() == [9, 8, 7, 6]
    (package / "test_lables.json").write_text(json.dumps([9, 8, 7]))
    with pytest.raises(DamagedFile, match="test_lables"):
        load("cifar10", root=tmp_path)
    (package / "data_batch_3.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(DamagedFile, match="data_batch_3"):
        load("cifar10", root=tmp_path)


def make_folder(root, rng, count=10):
    for part, images in (("train", count), ("val", 3)):
        for label, name in enumerate(("cat", "dog")):
            (root / part / name).mkdir(parents=True)
            for i in range(images):
                size = (40 + 3 * i, 30 + 5 * label, 3)
                pixels = rng.integers(0, 256, size, dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{i}.{'png' if i % 2 else 'jpg'}")


def test_folder_in_memory_and_lazily_agree(tmp_path, rng):
    make_folder(tmp_path, rng)
    small = load(f"folder:{tmp_path}", resolution=16)
    large = load(f"folder:{tmp_path}", resolution=16, in_memory=False, workers=0)
    assert small.identity() == large.identity()
    assert small.about.class_names == ("cat", "dog") and small.size("test") == 6
    wanted = [small.positions("train")[:5], small.positions("test")]
    for (a, la), (b, lb) in zip(small.fetch(wanted), large.fetch(wanted)):
        assert torch.equal(a, b) and torch.equal(la, lb)
    crops = [torch.cat([x for x, _ in large.fetch(wanted, Seed(seed))]) for seed in (0, 0, 1)]
    assert torch.equal(crops[0], crops[1]) and not torch.equal(crops[0], crops[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_central_crops_are_decoded_once_and_kept_up_to_a_limit(tmp_path, rng, monkeypatch, workers):
    make_folder(tmp_path, rng)
    data = load(f"folder:{tmp_path}", resolution=16, in_memory=False, workers=workers)
    decoded = []
    read = folder.read_image
    monkeypatch.setattr(folder, "read_image", lambda path, *rest: decoded.append(path) or read(path, *rest))
    first = list(data.batches("val", 3))
    assert len(decoded) == data.size("val") == 4
    threads = {thread.ident for thread in threading.enumerate()}
    again = list(data.batches("val", 3))
    assert len(decoded) == 4 and all(torch.equal(a, b) for (a, _), (b, _) in zip(first, again, strict=True))
    assert {thread.ident for thread in threading.enumerate()} <= threads
    next(data.fetch([torch.arange(4)], Seed(0)))
    assert len(decoded) == 8  # random crops are read anew
    monkeypatch.setattr(folder, "MEMORY_LIMIT", 6 * 3 * 16**2)
    limited = load(f"folder:{tmp_path}", resolution=16, in_memory=False, workers=workers)
    for _ in range(2):
        images, _ = next(limited.fetch([torch.arange(10)]))
    assert len(limited.kept) == 6 and len(decoded) == 8 + 10 + 4 and len(images) == 10
    assert pickle.loads(pickle.dumps(data)).kept == {}


def test_grey_images_and_a_class_with_one_image(tmp_path, rng):
    make_folder(tmp_path, rng)
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "train" / "cat" / "deep.png")
    Image.fromarray((ramp // 257).astype(np.uint8)).save(tmp_path / "train" / "cat" / "grey.png")
    deep, grey = (folder.read_image(tmp_path / "train" / "cat" / f"{name}.png", 16) for name in ("deep", "grey"))
    assert torch.equal(deep, grey) and deep.shape == (3, 16, 16) and deep.float().std() > 30
    for part in ("train", "val"):
        (tmp_path / part / "owl").mkdir()
        Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / part / "owl" / "1.png")
    with pytest.warns(UserWarning, match="class 'owl' has one training image"):
        load(f"folder:{tmp_path}", resolution=16)


@pytest.mark.slow
def test_folder_workers_give_the_same_images(tmp_path, rng):
    make_folder(tmp_path, rng)
    options = {"resolution": 16, "in_memory": False}
    batches = list(torch.arange(20).split(4))
    alone = load(f"folder:{tmp_path}", workers=0, **options).fetch(batches, Seed(3))
    helped = load(f"folder:{tmp_path}", workers=2, **options).fetch(batches, Seed(3))
    for (a, _), (b, _) in zip(alone, helped, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("in_memory", [True, False])
def test_corrupt_image_is_named_refused_or_skipped(tmp_path, rng, in_memory):
    make_folder(tmp_path, rng)
    bad = tmp_path / "train" / "dog" / "4.jpg"
    bad.write_bytes(bad.read_bytes()[:100])
    options = {"resolution": 16, "in_memory": in_memory, "workers": 0}
    with pytest.raises(DamagedFile, match=r"dog/4\.jpg"):
        data = load(f"folder:{tmp_path}", **options)
        list(data.fetch([torch.arange(20)]))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        data = load(f"folder:{tmp_path}", on_corrupt="skip", **options)
        images, _ = next(data.fetch([torch.arange(19)]))
    assert any("dog/4.jpg" in str(w.message) for w in seen) and len(images) == 19


def test_a_folder_without_parts_keeps_a_quarter_of_each_class_for_the_test(tmp_path, rng):
    make_folder(tmp_path / "whole", rng, count=12)
    plain = tmp_path / "plain"
    (tmp_path / "whole" / "train").rename(plain)
    data = load(f"folder:{plain}", resolution=16)
    test = [int(label) for _, labels in data.batches("test", 8) for label in labels]
    assert sorted(test) == [0, 0, 0, 1, 1, 1] and data.size("train+val") == 18
    again = load(f"folder:{plain}", resolution=16, seed=5)  # another split of the rest; the same test images
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(data.batches("test", 8), again.batches("test", 8)))
    (plain / "cow").mkdir()
    with pytest.raises(DataMissing, match="plain/cow must hold images"):
        load(f"folder:{plain}", resolution=16)


def test_folder_mistakes_are_named(tmp_path, rng):
    with pytest.raises(DataMissing, match="two classes or more, or the folders train/ and val/"):
        load(f"folder:{tmp_path}")
    (tmp_path / "train").mkdir()
    with pytest.raises(DataMissing, match="val/ is missing"):
        load(f"folder:{tmp_path}")
    (tmp_path / "val").mkdir()
    with pytest.raises(DataMissing, match="it has none"):
        load(f"folder:{tmp_path}")
    (tmp_path / "train" / "cat").mkdir()
    with pytest.raises(BadInput, match="two classes"):
        load(f"folder:{tmp_path}")
    (tmp_path / "train" / "dog").mkdir()
    with pytest.raises(DataMissing, match=r"train/cat must hold images"):
        load(f"folder:{tmp_path}")
    (tmp_path / "val" / "cow").mkdir()
    with pytest.raises(BadInput, match="classes of train/, got cow"):
        load(f"folder:{tmp_path}")
    with pytest.raises(BadInput, match="refuse"):
        load(f"folder:{tmp_path}", on_corrupt="ignore")


@pytest.fixture
def rng():
    return np.random.default_rng(0)
