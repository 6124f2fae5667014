from __future__ import annotations

import re
import struct
import threading

import pytest
import torch
from builders import TARGET, make_artifact, make_kernel, make_spec
from cuda.bindings import driver
from fake_driver import FakeDriver

import kreg
from kreg import LaunchError, loader
from kreg.launch import Launch, check_tensor, observe_launches, prepare
from kreg.manifest import Launch as LaunchConfig

ELSEWHERE = driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
SIZES = (8, 8, 4)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver().install(monkeypatch)
    made.parameter_sizes = SIZES
    return made


def make_launch(changing: int = 2, arguments: tuple[int, ...] = (1, 2, 3), **overrides: object) -> Launch:
    return Launch(loader.load(make_artifact(**overrides)), arguments, changing=changing)


def test_launch_passes_grid_block_shared_memory_stream_and_arguments(fake: FakeDriver):
    call = make_launch().bind((5, 1, 1), lambda: 77)
    call(10, 20)
    ((shape, values),) = fake.launches
    assert shape == (5, 1, 1, 128, 1, 1, 1024, 77)
    assert struct.unpack("<QQI", values) == (10, 20, 3)


def test_launch_replaces_only_the_changing_arguments(fake: FakeDriver):
    call = make_launch(changing=1, arguments=(1, 2**64 - 1, -3)).bind((1, 1, 1), int)
    call(7)
    call(8)
    assert [struct.unpack("<QQi", values) for _, values in fake.launches] == [(7, 2**64 - 1, -3), (8, 2**64 - 1, -3)]


def test_launch_asks_for_the_stream_at_every_call(fake: FakeDriver):
    streams = iter([1, 2, 3])
    call = make_launch(changing=0).bind((1, 1, 1), lambda: next(streams))
    for _ in range(3):
        call()
    assert [shape[7] for shape, _ in fake.launches] == [1, 2, 3]


def test_launch_from_another_context_is_repeated_in_the_kernels(fake: FakeDriver):
    call = make_launch().bind((1, 1, 1), int)
    pushed = fake.calls.count("cuCtxPushCurrent")
    fake.errors["cuLaunchKernel"] = [ELSEWHERE]
    call(10, 20)
    assert fake.calls.count("cuCtxPushCurrent") == pushed + 1
    assert fake.calls.count("cuCtxPopCurrent") == pushed + 1
    ((_, values),) = fake.launches
    assert struct.unpack("<QQI", values) == (10, 20, 3)


@pytest.mark.parametrize("errors", [[driver.CUresult.CUDA_ERROR_LAUNCH_FAILED], [ELSEWHERE, ELSEWHERE]])
def test_launch_failure_names_spec_device_and_error(fake: FakeDriver, errors: list[driver.CUresult]):
    call = make_launch().bind((1, 1, 1), int)
    fake.errors["cuLaunchKernel"] = list(errors)
    message = f"cannot launch `fake@1[size=1]:sm_90a` on device 0: {errors[-1].name}"
    with pytest.raises(LaunchError, match=f"^{re.escape(message)}$"):
        call(1, 2)
    call(1, 2)
    assert len(fake.launches) == 1


def test_launch_from_many_threads_never_mixes_arguments(fake: FakeDriver):
    call = make_launch(changing=2).bind((1, 1, 1), int)

    def run(number: int) -> None:
        for _ in range(300):
            call(number, number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [struct.unpack("<QQI", values) for _, values in fake.launches]
    assert len(found) == 2400
    assert all(first == second and third == 3 for first, second, third in found)


def test_launch_with_too_few_arguments_is_refused(fake: FakeDriver):
    with pytest.raises(LaunchError, match=r"^fake takes 3 arguments, not 2$"):
        make_launch(arguments=(1, 2))


def test_launch_with_a_parameter_that_is_no_scalar_is_refused(fake: FakeDriver):
    with pytest.raises(LaunchError, match=r"^fake has a parameter of 24 bytes, which is no pointer or scalar$"):
        make_launch(parameters=[(0, 8), (8, 24), (32, 4)], parameter_bytes=36)


def test_launch_with_parameters_beyond_their_space_is_refused(fake: FakeDriver):
    with pytest.raises(LaunchError, match=r"^fake: parameters of 20 bytes in 16$"):
        make_launch(parameter_bytes=16)


def test_grid_is_static_only_where_the_rule_names_no_extent(fake: FakeDriver):
    assert make_launch().grid is None
    static = LaunchConfig(block=(128, 1, 1), grid=(4, 2, 1), shared_bytes=0)
    assert make_launch(launch=static, toolchain_key="e" * 64).grid == (4, 2, 1)


def test_prepare_resolves_and_loads_for_the_device(fake: FakeDriver, root: str):
    kernel = prepare(make_kernel(targets=("sm_90", TARGET)), device=0, store=root, size=1)
    assert isinstance(kernel, loader.LoadedKernel)
    assert kernel.artifact.key == make_spec().key


def test_prepare_after_freeze_needs_neither_store_nor_compiler(fake: FakeDriver, root: str):
    declared = make_kernel()
    first = prepare(declared, device=0, store=root, size=1)
    kreg.freeze()
    assert prepare(declared, device=0, store=root, size=1) is first
    with pytest.raises(kreg.MissError, match="the policy is frozen"):
        prepare(declared, device=0, store=root, size=2)


def test_prepare_under_capture_is_refused(fake: FakeDriver, root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    message = "fake is not loaded, and a graph is being captured; call kreg.prepare('fake', ...) or launch it once"
    with pytest.raises(LaunchError, match=re.escape(message)):
        prepare(make_kernel(), device=0, store=root, size=1)
    assert "cuModuleLoadData" not in fake.calls


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(2, 4, dtype=torch.float64), "x has dtype torch.float64; it takes torch.float32"),
        (torch.zeros(2, 5), "x has shape (2, 5); it takes (2, 4)"),
        (torch.zeros(4, 2).T, "x has strides (1, 2); it must be contiguous"),
        (torch.zeros(9)[1:].view(2, 4), "x starts at an address that is not a multiple of 16 bytes"),
    ],
)
def test_check_tensor_names_the_argument_and_what_is_wrong(tensor: torch.Tensor, message: str):
    with pytest.raises(LaunchError, match=f"^{re.escape(message)}$"):
        check_tensor("x", tensor, torch.float32, (2, 4), -1)


def test_check_tensor_of_another_device_is_refused():
    with pytest.raises(LaunchError, match=r"^x is on cpu; the others are on cuda:0$"):
        check_tensor("x", torch.zeros(2, 4), torch.float32, (2, 4), 0)


def test_check_tensor_returns_the_address():
    tensor = torch.zeros(2, 4)
    assert check_tensor("x", tensor, torch.float32, (2, 4), -1) == tensor.data_ptr()


# Observing.


def test_observer_is_told_of_every_launch_of_what_is_bound_after(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []
    monkeypatch.setattr("kreg.launch._observer", None)
    before = make_launch().bind((1, 1, 1), int)
    observe_launches(lambda artifact: seen.append(artifact.cubin_digest))
    launch = make_launch(size=2)
    call, other = launch.bind((1, 1, 1), int), launch.bind((2, 1, 1), int)
    observe_launches(None)
    after = make_launch(size=4).bind((1, 1, 1), int)
    for function in (before, call, call, other, after):
        function(10, 20)
    assert seen == [make_artifact(2).cubin_digest] * 3
    assert len(fake.launches) == 5
    assert struct.unpack("<QQI", fake.launches[1][1]) == (10, 20, 3)


def test_device_is_described(fake: FakeDriver):
    assert loader.describe_device() == ("Made-up GPU", "13.0")
