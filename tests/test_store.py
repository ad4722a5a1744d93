import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from pydantic import BaseModel

from house import journal_rows
from snugnet import store
from snugnet.errors import BadInput, DamagedFile, FileTrouble
from snugnet.store import Journal, RunLock, StepCache


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


def test_equal_values_have_equal_fingerprints():
    assert store.fingerprint({"a": 1, "b": (2.5, None)}) == store.fingerprint({"b": [2.5, None], "a": 1})
    assert store.fingerprint({"a": 1}) != store.fingerprint({"a": 1.5})
    with pytest.raises(ValueError, match="JSON"):
        store.fingerprint(float("nan"))


def test_weights_are_told_apart_by_name_shape_type_and_bits():
    weights = torch.arange(4.0)
    known = store.tensors_fingerprint({"w": weights, "count": torch.tensor(3)})
    assert known == store.tensors_fingerprint({"count": torch.tensor(3), "w": weights.clone()})
    others = [weights.reshape(2, 2), weights.to(torch.bfloat16), weights + 1e-6]
    for other in others:
        assert store.tensors_fingerprint({"w": other, "count": torch.tensor(3)}) != known
    assert store.tensors_fingerprint({"v": weights, "count": torch.tensor(3)}) != known


def test_a_model_names_file_and_field(tmp_path):
    class Point(BaseModel):
        x: float

    path = store.write_json(tmp_path / "p.json", {"x": [1]})
    with pytest.raises(DamagedFile, match=r"p\.json: x: .*number"):
        store.read_model(path, Point)
    store.write_json(path, {"x": 2})
    assert store.read_model(path, Point).x == 2.0


def test_a_sealed_file_is_believed_only_as_it_was_written(tmp_path):
    path = store.write_json(tmp_path / "c.json", store.sealed({"fits": False, "limit": 3.25}))
    assert store.read_sealed(path, "a certificate") == {"fits": False, "limit": 3.25}
    path.write_text(path.read_text().replace("false", "true"))
    with pytest.raises(DamagedFile, match=r"c\.json: field sha256 must match"):
        store.read_sealed(path, "a certificate")
    path.write_text("[]")
    with pytest.raises(DamagedFile, match="must be a certificate"):
        store.read_sealed(path, "a certificate")


def test_a_journal_comes_back_and_belongs_to_its_work(tmp_path):
    path = tmp_path / "new" / "j.jsonl"
    book = Journal(path, "one", ["ms"])
    book.append({"ms": [1.5, 2.5], "spent": 4})
    with pytest.raises(ValueError, match="ms"):
        book.append({"spent": 4})
    assert Journal(path, "one", ["ms"]).rows == [{"ms": [1.5, 2.5], "spent": 4}] == journal_rows(path)
    assert Journal(path, "two", ["ms"]).rows == []
    assert Journal(path, "one", ["ms"]).rows == []  # the other work has the file now


def test_a_torn_tail_is_cut_before_anything_is_appended(tmp_path):
    """Torn, continued, opened again: with the tail left in place the second opening found damage in the middle."""
    path = tmp_path / "j.jsonl"
    for number in range(2):
        Journal(path, "x").append({"n": number})
    for cut in (b'{"n": 2, "c', b'{"n": 2}\n', b"\0\0\0\n\0\0"):
        path.write_bytes(path.read_bytes() + cut)
        book = Journal(path, "x")
        assert [row["n"] for row in book.rows] == list(range(len(book.rows)))
        book.append({"n": len(book.rows)})
        assert Journal(path, "x").rows == book.rows
    assert len(book.rows) == 5


@pytest.mark.parametrize("number", [1, 2])
def test_damage_in_the_middle_of_a_journal_is_named(tmp_path, number):
    path = tmp_path / "j.jsonl"
    book = Journal(path, "x")
    book.append({"n": 10})
    book.append({"n": 20})
    lines = path.read_text().splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace("x", "y").replace("10", "11")
    path.write_text("".join(lines))
    with pytest.raises(DamagedFile, match=rf"j\.jsonl .*line {number}"):
        Journal(path, "x")


def test_a_file_that_is_no_journal_is_started_anew(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text('{"format": "older", "of": 3}\n{"n": 1}\n')
    assert Journal(path, "x").rows == []
    assert json.loads(path.read_text().splitlines()[0])["identity"] == "x"


def test_steps_are_skipped_when_done_and_redone_when_anything_changed(tmp_path):
    lines, done = [], []

    def step(inputs):
        def work():
            done.append(inputs)
            store.write_text(tmp_path / "a.txt", str(inputs))
            return "well"

        StepCache(tmp_path, lines.append).step("make", inputs, ["a.txt"], work)

    step([1])
    step([1])
    assert done == [[1]]
    assert "done before" in lines[-1]
    (tmp_path / "a.txt").write_text("edited")
    step([1])
    step([2])
    (tmp_path / "a.txt").unlink()
    step([2])
    assert done == [[1], [1], [2], [2]]
    (tmp_path / "steps.json").write_text('{"make": {"of": 3}}')
    with pytest.raises(DamagedFile, match=r"steps\.json: make"):
        _ = StepCache(tmp_path, lines.append).seconds  # not before anybody asks


def test_steps_of_several_threads_are_all_recorded(tmp_path):
    lines, together = [], threading.Barrier(4, timeout=60)

    def step(number):
        def work():
            store.write_text(tmp_path / f"{number}.txt", str(number))
            together.wait()
            return "well"

        StepCache(tmp_path, lines.append).step(f"make {number}", [number], [f"{number}.txt"], work)

    before = os.umask(0o027)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(step, range(4)))
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert set(StepCache(tmp_path, lines.append).seconds) == {f"make {number}" for number in range(4)}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


_HOLD = """
import sys, time
from snugnet.store import RunLock
with RunLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    folder = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BadInput, match=f"{folder}, got 'process {holder.pid} ") as refused, RunLock(folder):
            pass
        assert "\n" not in str(refused.value)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with RunLock(folder):  # released with the process, without a hand
        pass


def test_a_folder_is_locked_within_a_process_too(tmp_path):
    with RunLock(tmp_path), pytest.raises(BadInput, match=str(os.getpid())), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass
