from __future__ import annotations

import re
import threading
import time

import pytest
from builders import make_artifact
from cuda.bindings import driver
from fake_driver import FakeDriver
from tiny_elf import make_cubin

from kreg import LoadError, loader
from kreg.manifest import Launch

NO_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
NO_IMAGE = driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return FakeDriver().install(monkeypatch)


@pytest.mark.parametrize(
    ("capability", "targets"),
    [
        ((8, 6), ["sm_86", "sm_85", "sm_84", "sm_83", "sm_82", "sm_81", "sm_80"]),
        ((9, 0), ["sm_90a", "sm_90"]),
        ((10, 0), ["sm_100a", "sm_100f", "sm_100"]),
        ((12, 1), ["sm_121a", "sm_121f", "sm_120f", "sm_121", "sm_120"]),
    ],
)
def test_runnable_targets_of_a_capability(capability: tuple[int, int], targets: list[str]):
    assert loader.runnable_targets(*capability) == targets


@pytest.mark.parametrize(
    ("capability", "declared", "chosen"),
    [
        ((9, 0), ("sm_90", "sm_90a"), "sm_90a"),
        ((9, 0), ("sm_80", "sm_90"), "sm_90"),
        ((12, 1), ("sm_120a", "sm_120f"), "sm_120f"),
        ((8, 9), ("sm_80", "sm_86"), "sm_86"),
    ],
)
def test_choose_target_takes_the_best_that_runs(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], declared: tuple[str, ...], chosen: str
):
    FakeDriver(capability).install(monkeypatch)
    assert loader.choose_target(declared, 0) == chosen


def test_choose_target_never_takes_one_for_another_chip(monkeypatch: pytest.MonkeyPatch):
    FakeDriver((12, 1)).install(monkeypatch)
    message = "none of the declared targets sm_120a, sm_90a runs on device 0 (sm_121a)"
    with pytest.raises(LoadError, match=re.escape(message)):
        loader.choose_target(("sm_120a", "sm_90a"), 0)


def test_device_targets_without_a_driver_is_empty(monkeypatch: pytest.MonkeyPatch):
    from cuda.pathfinder import DynamicLibNotFoundError

    def absent(_: int) -> None:
        raise DynamicLibNotFoundError("no libcuda")

    monkeypatch.setattr(driver, "cuInit", absent)
    assert loader.device_targets() == []


def test_device_targets_without_a_gpu_is_empty(fake: FakeDriver):
    fake.errors["cuInit"] = [driver.CUresult.CUDA_ERROR_NO_DEVICE]
    assert loader.device_targets() == []


def test_device_targets_names_each_kind_once(fake: FakeDriver):
    assert loader.device_targets() == ["sm_90a"]


def test_load_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver):
    from cuda.pathfinder import DynamicLibNotFoundError

    def absent(_: int) -> None:
        raise DynamicLibNotFoundError("no libcuda")

    monkeypatch.setattr(driver, "cuInit", absent)
    with pytest.raises(LoadError, match=r"^cannot use CUDA: this machine has no NVIDIA driver$"):
        loader.load(make_artifact())


def test_load_asks_the_driver_once_per_cubin(fake: FakeDriver):
    first, second = loader.load(make_artifact()), loader.load(make_artifact())
    assert first is second
    assert fake.calls.count("cuModuleLoadData") == 1
    assert fake.calls.count("cuCtxPushCurrent") == fake.calls.count("cuCtxPopCurrent") == 1


def test_load_from_many_threads_gives_one_kernel(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    load_data, together = driver.cuModuleLoadData, threading.Barrier(8)

    def slowly(image: bytes) -> object:
        time.sleep(0.05)  # Long enough for the others to find nothing loaded yet.
        return load_data(image)

    def run() -> None:
        together.wait()
        found.append(loader.load(artifact))

    monkeypatch.setattr(driver, "cuModuleLoadData", slowly)
    artifact, found = make_artifact(), []
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), len({id(kernel) for kernel in found})) == (8, 1)
    assert fake.calls.count("cuModuleLoadData") == 1


def test_load_forces_the_kernel_resident(fake: FakeDriver):
    loader.load(make_artifact())
    assert fake.calls.index("cuFuncLoad") > fake.calls.index("cuModuleGetFunction")


def test_load_tells_two_kernels_of_one_cubin_apart(fake: FakeDriver):
    first = loader.load(make_artifact())
    other = loader.load(make_artifact(symbol="other", toolchain_key="e" * 64))
    assert first.artifact.cubin_digest == other.artifact.cubin_digest
    assert int(first.function) != int(other.function)


@pytest.mark.parametrize(("shared", "asked"), [(48 << 10, 0), ((48 << 10) + 1, 1)])
def test_load_asks_for_more_shared_memory_where_needed(fake: FakeDriver, shared: int, asked: int):
    loader.load(make_artifact(launch=Launch(block=(128, 1, 1), grid=(1, 1, 1), shared_bytes=shared)))
    assert fake.calls.count("cuFuncSetAttribute") == asked


@pytest.mark.parametrize(
    ("call", "error"), [("cuModuleLoadData", NO_MEMORY), ("cuModuleLoadData", NO_IMAGE), ("cuFuncLoad", NO_MEMORY)]
)
def test_load_failure_names_artifact_target_device_and_versions(fake: FakeDriver, call: str, error: driver.CUresult):
    artifact = make_artifact()
    fake.errors[call] = [error]
    message = (
        f"cannot load `fake@1[size=1]:sm_90a` ({artifact.cubin_digest[:12]}) for sm_90a on device 0: {error.name}; "
        "the driver supports CUDA 13.0, the cubin was made by fake-compiler 1.0"
    )
    with pytest.raises(LoadError, match=f"^{re.escape(message)}$"):
        loader.load(artifact)
    assert fake.calls[-1] != "cuCtxPushCurrent"
    assert fake.calls.count("cuCtxPushCurrent") == fake.calls.count("cuCtxPopCurrent")
    assert loader.load(artifact).artifact is artifact


def test_load_of_a_cubin_that_is_cut_short_does_not_reach_the_driver(fake: FakeDriver):
    with pytest.raises(LoadError, match="for sm_90a on device 0: cubin is cut short"):
        loader.load(make_artifact(cubin=make_cubin()[:-1]))
    assert "cuModuleLoadData" not in fake.calls


def test_load_on_another_chip_is_refused_before_the_driver(monkeypatch: pytest.MonkeyPatch):
    fake = FakeDriver((12, 0)).install(monkeypatch)
    with pytest.raises(LoadError, match=r"is for sm_90a; device 0 runs sm_120a, sm_120f, sm_120$"):
        loader.load(make_artifact())
    assert "cuModuleLoadData" not in fake.calls


def test_load_on_a_device_that_is_not_there(fake: FakeDriver):
    fake.errors["cuDeviceGet"] = [driver.CUresult.CUDA_ERROR_INVALID_DEVICE]
    with pytest.raises(LoadError, match=r"^cannot find device 3: CUDA_ERROR_INVALID_DEVICE$"):
        loader.load(make_artifact(), 3)
