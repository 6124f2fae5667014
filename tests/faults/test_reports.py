"""Experiments of single reports of the table in README.md, where no other test has them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_backend
import pytest
from builders import (
    child_environment,
    entry_path,
    flip,
    make_artifact,
    make_kernel,
    make_spec,
    object_path,
    python,
    read_spec,
    resolve_anew,
    warnings_of,
)
from cuda.bindings import driver
from fake_backend import KERNEL
from fake_driver import FakeDriver
from tiny_elf import make_cubin

import kreg
from kreg import CompileError, DeclarationError, Store, loader
from kreg.backends import load_backend
from kreg.header import FORMAT
from kreg.loader import load
from kreg.manifest import Launch
from kreg.reach import package_files
from kreg.root import ENTRIES
from kreg.sweep import Limits, gc


def test_kb_039_compiler_that_was_replaced_compiles_nothing(monkeypatch: pytest.MonkeyPatch):
    backend = load_backend("cute")
    if backend.toolchain() is None:
        pytest.skip("needs the compiler: pip install 'kreg[cute]'")
    kernel = kreg.REGISTRY.get("kimi_topk16")
    other = type(backend.toolchain())(backend="cute", distributions={"nvidia-cutlass-dsl": "0.1"})
    monkeypatch.setattr(backend, "_imported", other)
    with pytest.raises(CompileError, match="the compiler was replaced after this process imported it"):
        backend.compile(kernel, kernel.spec("sm_90a", {}))


def test_kb_039_compiler_that_is_replaced_during_a_compile_is_told(monkeypatch: pytest.MonkeyPatch, root: str):
    def replace(*_: object) -> None:
        os.environ["FAKE_COMPILER"] = "2.0"

    monkeypatch.setenv("FAKE_COMPILER", "1.0")
    monkeypatch.setattr(fake_backend, "_misbehave", replace)
    with pytest.raises(CompileError, match="the compiler was replaced while"):
        resolve_anew(root)
    assert list(Store(root).entry_files()) == []


def test_kb_046_file_of_another_package_is_not_among_those_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The limit that the README states: another distribution is not followed.
    for name, text in {"mine/__init__": "", "mine/dev": "import theirs_046\n", "theirs_046": "X = 1\n"}.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("mine.dev")
    assert package_files("mine.dev", str(tmp_path / "mine")) == [str(tmp_path / "mine" / "dev.py")]


@pytest.mark.parametrize("value", [[1], {"a": 1}, (1, 2), None, 1.5])
def test_kb_053_option_that_is_no_plain_value_is_refused(value: object):
    with pytest.raises(DeclarationError, match=r"option 'fast' is .*; it is an int, bool or str"):
        make_kernel(options={"fast": value})


def test_kb_053_what_a_declaration_was_made_of_may_change_afterwards():
    allowed, options = [1, 2], {"fast": True}
    kernel = make_kernel(params=(kreg.Param("size", int, allowed=allowed),), options=options)
    before = kernel.spec("sm_90a", {"size": 1}).key
    allowed.append(3)
    options["fast"] = False
    assert kernel.spec("sm_90a", {"size": 1}).key == before
    with pytest.raises(kreg.SpecError):
        kernel.spec("sm_90a", {"size": 3})


def test_kb_066_option_that_is_written_is_part_of_the_key_and_a_parameter_at_its_default_is_not():
    plain = make_kernel().spec("sm_90a", {"size": 1}).key
    assert make_kernel().spec("sm_90a", {"size": 1, "note": "plain"}).key == plain
    assert make_kernel(options={"line_info": False}).spec("sm_90a", {"size": 1}).key != plain


def test_kb_088_kernel_is_loaded_once_for_each_device(monkeypatch: pytest.MonkeyPatch):
    FakeDriver().install(monkeypatch)
    artifact = make_artifact(1, make_cubin())
    first, other, again = load(artifact, 0), load(artifact, 1), load(artifact, 0)
    assert (again is first, other is first, other.device) == (True, False, 1)


def test_kb_093_artifacts_that_share_a_cubin_share_the_larger_limit(monkeypatch: pytest.MonkeyPatch):
    FakeDriver().install(monkeypatch)
    asked: list[int] = []

    def set_limit(_function: object, _attribute: object, size: int) -> tuple[driver.CUresult]:
        asked.append(size)
        return (driver.CUresult.CUDA_SUCCESS,)

    monkeypatch.setattr(driver, "cuFuncSetAttribute", set_limit)

    def launch(grid: int, shared: int) -> Launch:
        return Launch(block=(128, 1, 1), grid=(grid, 1, 1), shared_bytes=shared)

    for size, shared in ((1, 60 << 10), (2, 100 << 10), (3, 60 << 10)):
        load(make_artifact(size, make_cubin(), launch=launch(1, shared)))
    assert asked == [60 << 10, 100 << 10]
    # And another launch of one entry key is not the old one.
    grids = [load(make_artifact(4, make_cubin(), launch=launch(grid, 0))).artifact.launch.grid[0] for grid in (1, 7)]
    assert grids == [1, 7]


FORK = """
import os, sys, threading, time, kreg
from fake_backend import KERNEL
root = sys.argv[1]
ask = lambda **params: kreg.resolve(KERNEL, target="sm_90a", store=root, **params).origin
ask(size=9)
compiling = threading.Thread(target=lambda: ask(size=1, mode="slow"))
compiling.start()
from kreg import apart
while not apart._compiling:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    import signal
    signal.alarm(30)
    assert apart._is_forked
    os._exit(0 if ask(size=2) == "compiled" else 1)
assert os.waitpid(child, 0)[1] == 0
compiling.join()
"""


def test_kb_101_child_forked_during_a_compile_compiles_in_a_process_of_its_own(root: str):
    python(FORK, root)


@pytest.mark.parametrize("place", [entry_path, object_path])
def test_kb_116_bad_file_below_a_name_that_is_no_utf_8_is_set_aside(
    tmp_path: Path, place: Callable[[Store, kreg.Artifact], Path]
):
    root = f"{tmp_path}/" + os.fsdecode(b"\xff\xfe")
    flip(place(Store(root), resolve_anew(root)), 500)
    found, said = warnings_of(lambda: resolve_anew(root))
    assert (found.origin, len(said)) == ("compiled", 1)
    assert resolve_anew(root).origin != "compiled"


@pytest.mark.parametrize("name", ["q'x", 'q"x'])
def test_kb_116_temporary_folder_that_the_compiler_cannot_use_is_named(tmp_path: Path, root: str, name: str):
    if load_backend("cute").toolchain() is None:
        pytest.skip("needs the compiler: pip install 'kreg[cute]'")
    (tmp_path / name).mkdir()
    code = (
        "import kreg\ntry:\n    kreg.resolve('kimi_topk16', target='sm_90a')\n"
        "except kreg.CompileError as error:\n    print(error)"
    )
    variables = child_environment(TMPDIR=str(tmp_path / name), KREG_STORE=root)
    assert "set TMPDIR to a directory with a plain name" in python(code, environment=variables)


def test_kb_128_several_gcs_at_once_take_no_more_than_one(store: Store):
    store.publish_all(make_artifact(size) for size in range(1, 41))
    code = (
        "import sys\nfrom kreg import Store\nfrom kreg.sweep import Limits, gc\n"
        "gc(Store(sys.argv[1]), Limits(entries=20))"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, store.root], env=child_environment()) for _ in range(4)]
    assert [child.wait(60) for child in children] == [0] * 4
    assert len(list(store.entry_files())) == 20


def test_kb_130_publish_lists_no_folder_of_entries(full: Store, monkeypatch: pytest.MonkeyPatch):
    listed: list[str] = []
    for name in ("listdir", "scandir"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path, real=real: (listed.append(str(path)), real(path))[1])
    Store(full.root).publish(make_artifact(9))
    assert [path for path in listed if path != full.root] == []


def test_kb_134_clear_during_a_compile_costs_its_caller_nothing(root: str, monkeypatch: pytest.MonkeyPatch):
    from kreg.upkeep import clear, plan_clear_all

    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(fake_backend, "_misbehave", lambda *_: (begun.set(), go_on.wait(30)))
    resolve_once = lambda: kreg.resolve(KERNEL, size=1, target="sm_90a", store=root)  # noqa: E731
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(resolve_once)
        assert begun.wait(30)
        clear(Store(root), plan_clear_all(Store(root)))
        go_on.set()
        assert compiling.result().origin == "compiled"
    # What was published afterwards is right by its key and its sources.
    assert resolve_anew(root).origin != "compiled"


def test_kb_135_format_of_a_manifest_is_that_of_its_directory():
    # So another format has a place of its own, and neither kreg writes over, or compiles for, the other's.
    assert f"entries-v{FORMAT}" == ENTRIES


EARLY = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import constant
time.sleep(1.1)
Path(constant.__file__).write_text("GRID = 22\\n")
time.sleep(2.5)
import kreg
from kreg import sources
print(sources.changed_since_start([constant.__file__]))
"""


def test_kb_152_edit_before_the_first_import_of_kreg_is_seen(tmp_path: Path):
    (tmp_path / "constant.py").write_text("GRID = 1\n", encoding="utf-8")
    assert python(EARLY, str(tmp_path)) == "True\n"


def test_kb_004_readers_of_two_writers_never_get_a_mixture(store: Store):
    cubins = {build: make_cubin(code=bytes([build]) * 64) for build in (1, 2)}
    written = [make_artifact(1, cubins[build], registers=build) for build in (1, 2)]
    stop = time.monotonic() + 1.0

    def write(artifact: kreg.Artifact) -> None:
        while time.monotonic() < stop:
            Store(store.root).publish(artifact)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, artifact) for artifact in written]
        while time.monotonic() < stop:
            found = read_spec(Store(store.root), written[0])
            if found is not None:
                assert found.cubin == cubins[found.manifest.registers]
        for writer in writers:
            writer.result()
    assert gc(store, Limits()).left == 1


def test_kb_038_every_field_of_a_spec_moves_its_key_and_a_new_one_needs_a_decision():
    moved = {
        "kernel": "other",
        "version": 2,
        "params": {"size": 2},
        "target": "sm_100a",
        "options": {"line_info": True},
    }
    assert {*moved, "key"} == set(kreg.CompileSpec.__slots__)
    plain = make_spec()
    assert all(make_spec(**{name: value}).key != plain.key for name, value in moved.items())


def test_kb_075_target_is_that_of_the_device_that_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader, "_targets", {0: ["sm_120a", "sm_120"], 3: ["sm_86", "sm_80"]})
    assert loader.choose_target(("sm_120a", "sm_86"), 3) == "sm_86"
    assert loader.choose_target(("sm_120a", "sm_86"), 0) == "sm_120a"


COMPILE_AGAIN = """
import os, sys, kreg
counts = []
for number in range(6):
    kreg.resolve("kimi_topk16", target="sm_90a", store=f"{sys.argv[1]}-{number}")
    kreg.forget()
    counts.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
print(len(set(counts[1:])), counts)
"""


def test_kb_097_real_compiles_leave_no_thread_and_no_descriptor(root: str):
    if load_backend("cute").toolchain() is None:
        pytest.skip("needs the compiler: pip install 'kreg[cute]'")
    assert python(COMPILE_AGAIN, root).startswith("1 ")
