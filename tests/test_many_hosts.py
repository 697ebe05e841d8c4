"""Two processes are one program: they learn, are killed, go on, and a missing one is named."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from numpyro_ndpp.hosts import start_process

EXAMPLE = Path(__file__).parents[1] / "examples" / "many_hosts.py"
_SECONDS = 1800


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


def start(process, number, port, folder, *settings):
    command = [sys.executable, str(EXAMPLE), "--coordinator", f"localhost:{port}", "--processes", str(number)]
    command += ["--process", str(process), "--folder", str(folder), *map(str, settings)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_all(number, folder, *settings):
    port = free_port()
    processes = [start(process, number, port, folder, *settings) for process in range(number)]
    outputs = [process.communicate(timeout=_SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * number, outputs[0][-2000:] + outputs[-1][-2000:]
    return outputs[0]


@pytest.mark.slow
def test_a_killed_process_is_made_good(tmp_path):
    """kill -9 of one of two after a checkpoint; started again, they end with the kernel of one process."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    settings = ("--steps", 400, "--baskets", 300, "--draws", 500)
    run_all(1, folders[0], *settings)
    port = free_port()
    processes = [start(process, 2, port, folders[1], *settings) for process in range(2)]
    end = time.monotonic() + _SECONDS
    while not (folders[1] / "checkpoint.npz").exists():
        assert time.monotonic() < end
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)
    processes[1].send_signal(signal.SIGKILL)
    processes[1].communicate(timeout=_SECONDS)
    assert processes[1].returncode == -signal.SIGKILL
    assert not (folders[1] / "V.npy").exists()  # it was not done
    time.sleep(1)
    processes[0].kill()  # what is left of the run, as a cluster's scheduler would
    processes[0].communicate(timeout=_SECONDS)
    output = run_all(2, folders[1], *settings)
    for name in "VBD":
        one, two = (np.load(folder / f"{name}.npy") for folder in folders)
        if name == "D":  # of which D - Dᵀ counts; Adam makes steps of what rounding leaves on the diagonal
            one, two = one - one.T, two - two.T
        np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-4, err_msg=name)
    assert float(re.search(r"deviation of the items' frequencies ([0-9.]+)", output)[1]) < 2.5


def test_a_missing_process_is_named_in_time():
    start_time = time.monotonic()
    with pytest.raises(TimeoutError, match=r"of 3 processes these did not come to localhost:.* within 0.5 s: 1, 2"):
        start_process(f"localhost:{free_port()}", 3, 0, timeout=0.5)
    with pytest.raises(TimeoutError, match=r"process 2 waited 0.5 s for localhost"):
        start_process(f"localhost:{free_port()}", 3, 2, timeout=0.5)
    assert time.monotonic() - start_time < 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("localhost", 2, 0), "coordinator must be a host and a port"),
        (("localhost:1", 0, 0), "num_processes must be at least 1"),
        (("localhost:1", 2, 2), "process_id must be between 0 and num_processes - 1 = 1"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        start_process(*arguments)


DIFFERENT = """
import sys
import jax, numpy as np
from jax.sharding import Mesh
from numpyro_ndpp.devices import shard_rows
from numpyro_ndpp.hosts import start_process
from numpyro_ndpp.learning import fit
process = int(sys.argv[1])
start_process(sys.argv[2], 2, process, timeout=600)
mesh = Mesh(np.array(jax.devices()), ("items",))
for call in (
    lambda: shard_rows(np.ones((8 + 2 * process, 3)), mesh),
    lambda: fit([[0, 1], [2]], 4, rank=2, seed=process, mesh=mesh),
    lambda: fit([[0, 1], [2 + process]], 4, rank=2, mesh=mesh),
):
    try:
        call()
    except ValueError as error:
        print(error)
"""


@pytest.mark.slow
def test_processes_that_differ_are_told_so():
    port = free_port()
    command = [sys.executable, "-c", DIFFERENT]
    processes = [
        subprocess.Popen([*command, str(i), f"localhost:{port}"], stdout=subprocess.PIPE, text=True) for i in range(2)
    ]
    for process in processes:
        output = process.communicate(timeout=_SECONDS)[0]
        assert process.returncode == 0
        assert "features: the shape must be the same in all processes, got [8, 3] in process 0, [10, 3] in" in output
        assert "num_items and seed must be the same in all processes, got [4, 0] in process 0, [4, 1] in" in output
        assert "baskets (their fingerprint) must be the same in all processes" in output
