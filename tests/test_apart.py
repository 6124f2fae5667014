"""Compiling in a process of its own, where this one may have imported older sources."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import fake_backend
import pytest
from builders import HERE, child_environment, make_kernel, python
from fake_backend import KERNEL
from source_backend import declare

import kreg
from kreg import CompileError, DeclarationError
from kreg.apart import compile_apart, compile_current
from kreg.build import compile_artifact

Runs = Callable[[], int]
SPEC = KERNEL.spec("sm_90a", {"size": 1})
BACKEND = """
from source_backend import SourceBackend
import constant
class Backend(SourceBackend):
    def compile(self, kernel, spec):
        compiled = super().compile(kernel, spec)
        compiled.launch = type(compiled.launch)(block=(32, 1, 1), grid=(constant.GRID, 1, 1), shared_bytes=0)
        return compiled
BACKEND = Backend()
"""


def fail(mode: str) -> pytest.ExceptionInfo[CompileError]:
    with pytest.raises(CompileError) as caught:
        compile_apart(KERNEL, KERNEL.spec("sm_90a", {"size": 1, "mode": mode}))
    return caught


def test_compile_apart_gives_the_same_artifact():
    here, there = compile_artifact(KERNEL, SPEC), compile_apart(KERNEL, SPEC)
    assert (there.manifest_bytes, there.cubin, there.origin) == (here.manifest_bytes, here.cubin, "compiled")


def test_error_of_the_compiler_comes_back_with_its_log():
    caught = fail("refuse")
    assert str(caught.value) == "cannot compile fake@1[size=1,mode=refuse]:sm_90a: expected ';'"
    assert caught.value.log == fake_backend.LOG


def test_bug_of_a_backend_is_told_with_its_traceback():
    caught = fail("raise")
    assert str(caught.value) == (
        "cannot compile fake@1[size=1,mode=raise]:sm_90a: its backend raised RuntimeError: the fake compiler has a bug"
    )
    assert "in _misbehave" in caught.value.log


@pytest.mark.parametrize("mode", ["exit", "segfault"])
def test_crash_of_the_compiler_costs_the_compile_alone(mode: str):
    assert str(fail(mode).value) == (
        f"cannot compile fake@1[size=1,mode={mode}]:sm_90a: the compiler killed its process"
    )


def test_what_the_compiler_prints_goes_to_standard_error(capfd: pytest.CaptureFixture[str]):
    artifact = compile_apart(KERNEL, KERNEL.spec("sm_90a", {"size": 1, "mode": "print"}))
    output, errors = capfd.readouterr()
    assert (artifact.symbol, output, errors.count(fake_backend.SAID)) == ("fake_1", "", 2)


def test_backend_that_is_not_there_is_named():
    kernel = make_kernel(backend="no_such_module:BACKEND")
    with pytest.raises(DeclarationError, match="there is no backend 'no_such_module:BACKEND'"):
        compile_apart(kernel, SPEC)


def test_process_without_an_interpreter_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(CompileError, match=r"its sources changed, and this process has no interpreter to start$"):
        compile_apart(KERNEL, SPEC)


def test_unchanged_sources_are_compiled_in_this_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kreg.sources._started", lambda: float("inf"))
    monkeypatch.setattr(sys, "executable", "")
    assert compile_current(KERNEL, SPEC).symbol == "fake_1"


def test_module_that_was_edited_after_its_import_is_compiled_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Only sys.path of this process leads there, and it has imported the old constant.
    (tmp_path / "constant.py").write_text("GRID = 1\n", encoding="utf-8")
    (tmp_path / "constant_backend.py").write_text(BACKEND, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = declare(tmp_path, backend="constant_backend:BACKEND", sources=("code.txt", "shared.txt", "constant.py"))
    spec = kernel.spec("sm_90a", {"size": 1})
    importlib.import_module("constant_backend")
    (tmp_path / "constant.py").write_text("GRID = 22\n", encoding="utf-8")
    try:
        assert compile_artifact(kernel, spec).launch.grid == (1, 1, 1)
        assert compile_current(kernel, spec).launch.grid == (22, 1, 1)
    finally:
        del sys.modules["constant_backend"], sys.modules["constant"]


def test_script_without_a_main_guard_compiles_once(tmp_path: Path, root: str, runs: Runs):
    (tmp_path / "script.py").write_text(
        "from pathlib import Path\nimport kreg\nfrom source_backend import declare\n"
        f"kernel = declare(Path({str(tmp_path / 'new')!r}))\n"
        f"print(kreg.resolve(kernel, size=1, target='sm_90a', store={root!r}).symbol)\n",
        encoding="utf-8",
    )
    code = f"import runpy; runpy.run_path({str(tmp_path / 'script.py')!r}, run_name='__main__')"
    assert python(code, environment=child_environment(PYTHONPATH=str(HERE))) == "kernel\n"
    assert runs() == 1


# What a compile says of its own files.


def with_files(monkeypatch: pytest.MonkeyPatch, *files: Path) -> None:
    """Make the fake backend say that it was made of these files."""
    real = fake_backend.FakeBackend.compile

    def compile_and_tell(self: object, kernel: kreg.Kernel, spec: kreg.CompileSpec) -> object:
        compiled = real(self, kernel, spec)
        compiled.files = tuple(map(str, files))
        return compiled

    monkeypatch.setattr(fake_backend.FakeBackend, "compile", compile_and_tell)


def test_declaration_that_leaves_out_a_file_is_refused_and_nothing_published(
    root: str, monkeypatch: pytest.MonkeyPatch
):
    with_files(monkeypatch, HERE / "tiny_elf.py", HERE / "lock_holder.py", HERE / "gpu" / "worlds.py")
    with pytest.raises(DeclarationError) as caught:
        kreg.resolve(KERNEL, size=1, target="sm_90a", store=root)
    assert str(caught.value) == (
        f"fake@1 is also made from 'lock_holder.py', 'gpu/worlds.py'; add it to `sources` in {KERNEL.file}"
    )
    assert list(kreg.Store(root).entry_files()) == []


def test_declared_file_under_another_path_is_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    os.symlink(HERE, tmp_path / "link")
    with_files(monkeypatch, tmp_path / "link" / "tiny_elf.py", HERE / "gpu" / ".." / "fake_backend.py")
    assert compile_artifact(KERNEL, SPEC).symbol == "fake_1"
