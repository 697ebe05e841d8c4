"""Files that are written whole or not at all: full disks, two writers, what killed ones leave behind."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from numpyro_ndpp.checkpoints import read_arrays, write_arrays


def test_full_disk_leaves_the_checkpoint_as_it_was(tmp_path):
    program = """
        import resource, sys
        import numpy as np
        from numpyro_ndpp.checkpoints import read_arrays, write_arrays
        path = sys.argv[1]
        write_arrays(path, {"a": np.arange(10)}, {"step": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            write_arrays(path, {"a": np.zeros(100_000)}, {"step": 2})
        except OSError as error:
            assert path in str(error), error
        else:
            raise AssertionError("no error")
        arrays, settings = read_arrays(path, ["a"])
        assert settings == {"step": 1} and (arrays["a"] == np.arange(10)).all()
    """
    path = tmp_path / "run.npz"
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], check=True)
    assert os.listdir(tmp_path) == ["run.npz"]


def test_two_writers_do_no_damage(tmp_path):
    """Each writes a part of its own: whoever reads meanwhile finds a whole file, and nothing is left over."""
    path, size = tmp_path / "run.npz", 50_000
    write_arrays(path, {"a": np.zeros(size)}, {})

    def write(value):
        for _ in range(30):
            write_arrays(path, {"a": np.full(size, value)}, {})

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, value) for value in (1.0, 2.0)]
        while not all(writer.done() for writer in writers):
            values = read_arrays(path, ["a"])[0]["a"]
            assert (values == values[0]).all()
        for writer in writers:
            writer.result()
    assert os.listdir(tmp_path) == ["run.npz"]


def test_what_killed_writers_left_is_removed_after_a_while(tmp_path):
    names = ("00000000.part", "11111111.part", "2019-backup.part", "npz.00000000.part")
    old, young, backup, other = (tmp_path / f"run.npz.{name}" for name in names)
    for part in (old, young, backup, other):
        part.write_bytes(b"half")
    for part in (old, backup, other):
        os.utime(part, (0, 0))
    write_arrays(tmp_path / "run.npz", {"a": np.zeros(3)}, {})
    assert sorted(os.listdir(tmp_path)) == sorted(["run.npz", young.name, backup.name, other.name])


def test_link_to_a_checkpoint_stays_one(tmp_path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "run.npz"
    link.symlink_to(tmp_path / "far" / "run.npz")
    write_arrays(link, {"a": np.zeros(3)}, {})
    assert link.is_symlink()
    assert (tmp_path / "far" / "run.npz").is_file()
