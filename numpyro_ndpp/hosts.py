"""Processes on many hosts as one JAX program: they meet first, so that a missing one is named and nobody waits forever.

``jax.distributed.initialize`` waits likewise, but a process that waits in vain is aborted by XLA, with a stack of
addresses in place of an error.
"""

import contextlib
import json
import socket
import time

import jax

from numpyro_ndpp.checks import finite_float, static_int

__all__ = ["start_process"]


def start_process(coordinator: str, num_processes: int, process_id: int, *, timeout: float = 60.0) -> None:
    """Make this process one of many that run the same program, before anything else is asked of JAX.

    Every process then sees the devices of all of them in ``jax.devices()``, and a mesh of these is one for all. On a
    CPU collectives go by Gloo.

    :param coordinator: host and port of process 0, "10.0.0.1:1234".
    :param num_processes: how many there are.
    :param process_id: which one this is, from 0 on.
    :param timeout: how many seconds to wait for the others.
    :raises TimeoutError: with the numbers of the processes that did not come in time.
    :raises ValueError: for numbers out of range, an address without a port, two processes of one number, and processes
        that were told different numbers of processes.

    >>> start_process("localhost:12345", num_processes=1, process_id=0)  # alone: nothing to do
    """
    num_processes = static_int("num_processes", num_processes, 1)
    process_id = static_int("process_id", process_id, 0, num_processes - 1, "num_processes - 1")
    timeout = finite_float("timeout", timeout, 0, exclusive=True)
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"coordinator must be a host and a port, host:1234, got {coordinator!r}")
    if num_processes == 1:
        return
    end = time.monotonic() + timeout
    if process_id == 0:
        _wait_for_others(host, int(port), num_processes, timeout, end)
    else:
        _come(host, int(port), num_processes, process_id, timeout, end)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, num_processes, process_id, initialization_timeout=max(10, int(timeout)))


def _wait_for_others(host: str, port: int, num_processes: int, timeout: float, end: float) -> None:
    """Process 0: until every other one has come and been told so."""
    come: dict[int, socket.socket] = {}
    problem = ""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((host, port)))
        while len(come) < num_processes - 1 and not problem:
            server.settimeout(max(end - time.monotonic(), 0.001))
            try:
                other = stack.enter_context(server.accept()[0])
            except TimeoutError:
                missing = sorted(set(range(1, num_processes)) - set(come))
                named = ", ".join(map(str, missing))
                raise TimeoutError(
                    f"of {num_processes} processes these did not come to {host}:{port} within {timeout:g} s: {named}"
                ) from None
            with contextlib.suppress(OSError, ValueError):  # somebody else's connection
                other.settimeout(max(end - time.monotonic(), 0.001))
                number, told = json.loads(other.makefile().readline())
                if told != num_processes:
                    problem = f"num_processes is {told} in process {number}, but {num_processes} in process 0"
                elif number in come:
                    problem = f"process_id is {number} in two processes"
                come[number] = other
        for other in come.values():
            with contextlib.suppress(OSError):
                other.sendall(json.dumps(problem).encode() + b"\n")
    if problem:
        raise ValueError(problem)


def _come(host: str, port: int, num_processes: int, process_id: int, timeout: float, end: float) -> None:
    """Another process: until process 0 says that all are there."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0) as connection:
            connection.sendall(json.dumps([process_id, num_processes]).encode() + b"\n")
            connection.settimeout(max(end - time.monotonic(), 0.001))
            answer = connection.makefile().readline()
            if answer:
                problem = json.loads(answer)
                if problem:
                    raise ValueError(problem)
                return
        if time.monotonic() > end:
            raise TimeoutError(
                f"process {process_id} waited {timeout:g} s for {host}:{port}: process 0 is not there, or others are "
                "missing"
            )
        time.sleep(0.2)
