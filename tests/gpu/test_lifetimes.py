"""Processes that have used the GPU: how they end, and what they start."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile

import pytest
import torch
from builders import child_environment
from fake_backend import KERNEL

import kreg

LOADED = """
import atexit, os, signal, sys, threading
import kreg
from kreg.inventory import entries
from kreg.loader import load
from kreg import Store
how = sys.argv[1]
if how == "atexit before torch":
    atexit.register(lambda: kernels[0].artifact.manifest)
import torch
torch.cuda.init()
store = Store()
found = [entry.manifest for entry in entries(store) if entry.manifest and entry.manifest.target == "sm_90a"]
kernels = [load(store.read(m.spec, m.toolchain_key)) for m in found]
assert len(kernels) >= 20, len(kernels)
if how == "atexit after torch":
    atexit.register(lambda: kernels[0].artifact.manifest)
if how == "exit":
    sys.exit(7)
if how == "exit in a thread":
    thread = threading.Thread(target=sys.exit, args=(7,)); thread.start(); thread.join()
if how == "exception":
    raise RuntimeError("meant")
if how == "reset":
    from cuda.bindings import driver
    driver.cuDevicePrimaryCtxReset(0)
if how == "release":
    from cuda.bindings import driver
    driver.cuDevicePrimaryCtxRelease(0)
if how == "dropped":
    from kreg import loader
    loader._loaded.clear(); loader._functions.clear(); kernels.clear()
if how == "_exit":
    os._exit(7)
if how == "terminated":
    os.kill(os.getpid(), signal.SIGTERM)
"""
ENDS = {
    "normal": 0, "exit": 7, "exit in a thread": 0, "exception": 1, "reset": 0, "release": 0, "dropped": 0,
    "atexit before torch": 0, "atexit after torch": 0, "_exit": 7, "terminated": -15,
}  # fmt: skip


@pytest.mark.parametrize("how", ENDS)
def test_process_with_loaded_kernels_ends_as_it_should(how: str):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, how], env=child_environment(PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == ENDS[how], done.stderr
    assert ("Traceback" in done.stderr) == (how == "exception"), done.stderr


def compile_one(root: str) -> None:
    kreg.forget()
    assert kreg.resolve(KERNEL, size=2, target="sm_90a", store=root, policy="compile").origin == "compiled"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "warm"])
def test_process_that_has_used_cuda_compiles_in_others(method: str):
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        if method == "warm":
            report = kreg.warm([(KERNEL, KERNEL.spec("sm_90a", {"size": 1}))], store=f"{folder}/store", jobs=2)
            assert report.count("compiled") == 1
            return
        process = multiprocessing.get_context(method).Process(target=compile_one, args=(f"{folder}/store",))
        process.start()
        process.join(60)
        process.kill()
        assert process.exitcode == 0
