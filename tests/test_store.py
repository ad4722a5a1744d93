import os

import pytest

from snugnet import store
from snugnet.errors import DamagedFile, FileTrouble


def test_json_comes_back_and_no_temporary_file_is_left(tmp_path):
    path = store.write_json(tmp_path / "new" / "a.json", {"x": [1, 2]})
    assert store.read_json(path) == {"x": [1, 2]}
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = store.write_text(tmp_path / "a.txt", "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileTrouble, match="No space left"):
        store.write_text(path, "new")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("content", [b'{"a": 1', b"", b"\xff\xfe\x00", b"[1,]"])
def test_damaged_json_is_named(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"bad\.json"):
        store.read_json(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileTrouble, match=r"gone\.json"):
        store.read_json(tmp_path / "gone.json")


def test_writability_is_known_before_the_work(tmp_path):
    store.check_writable(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileTrouble):
        store.check_writable(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileTrouble):
        store.check_writable(tmp_path / "file" / "x.json")
