"""Building: what a backend returns is checked before it is an artifact."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import fake_backend
import pytest
from builders import TOOLCHAIN, make_kernel, make_manifest, make_spec
from fake_backend import KERNEL

from kreg import Artifact
from kreg.build import compile_artifact, require_toolchain
from kreg.cubin import Cubin
from kreg.errors import CompileError, DeclarationError, ToolchainError
from kreg.manifest import Launch


def build(**params: object) -> Artifact:
    """Compile a variant of the fake kernel."""
    return compile_artifact(KERNEL, KERNEL.spec("sm_90a", {"size": 2, **params}))


def test_artifact_says_all_that_is_known():
    artifact = build()
    assert artifact.manifest == make_manifest(
        artifact.cubin,
        make_spec(params={"size": 2}),
        symbol="fake_2",
        launch=Launch(block=(128, 1, 1), grid=("rows", 1, 1), shared_bytes=2048),
        code_bytes=256,
        code_digest=Cubin(artifact.cubin).code_digest(),
    )
    assert artifact.origin == "compiled"
    assert artifact.toolchain_key == TOOLCHAIN.fingerprint


def test_kernel_for_any_block_is_accepted():
    assert build(mode="no_block").symbol == "fake_2"


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("garbage", "the compiler made no usable cubin of {}: cubin has 12 bytes, fewer than an ELF header"),
        (
            "other_symbol",
            "the compiler made no usable cubin of {}: cubin has no section '.text.elsewhere'; its kernels are fake_2",
        ),
        ("other_target", "the compiler made a cubin for sm_80 of {}"),
        ("other_block", "{} was compiled for blocks of (64, 1, 1), declared (128, 1, 1)"),
    ],
)
def test_cubin_that_is_not_what_was_asked_for_is_refused(mode: str, message: str):
    with pytest.raises(CompileError) as caught:
        build(mode=mode)
    assert str(caught.value) == message.format(f"fake@1[size=2,mode={mode}]:sm_90a")


def test_compile_error_carries_the_log():
    with pytest.raises(CompileError, match=re.escape("cannot compile fake@1[size=2,mode=refuse]:sm_90a:")) as caught:
        build(mode="refuse")
    assert caught.value.log == fake_backend.LOG


def test_source_that_changes_meanwhile_is_refused(tmp_path: Path):
    (tmp_path / "source.py").touch()
    kernel = make_kernel(file=str(tmp_path / "declared.py"), sources=("source.py",))
    spec = kernel.spec("sm_90a", {"size": 2, "mode": "touch_source"})
    message = f"a source of fake@1 changed while {spec} was compiled; compile it again"
    with pytest.raises(CompileError, match=f"^{re.escape(message)}$"):
        compile_artifact(kernel, spec)


def test_source_that_is_missing_is_found_before_the_compile(runs: Callable[[], int]):
    kernel = make_kernel(sources=("gone.py",))
    with pytest.raises(DeclarationError, match=re.escape("fake@1 declares the source 'gone.py', but")):
        compile_artifact(kernel, make_spec())
    assert runs() == 0


def test_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_COMPILER", "none")
    message = "cannot compile `fake@1[size=1]:sm_90a`: its compiler is not installed; run `pip install fake-compiler`"
    for action in (require_toolchain, compile_artifact):
        with pytest.raises(ToolchainError, match=f"^{re.escape(message)}$"):
            action(KERNEL, make_spec())


def test_compiler_that_is_missing_can_be_installed_with_an_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kreg.backends.cute.installed_versions", lambda _names: {})
    with pytest.raises(
        ToolchainError, match=re.escape("its compiler is not installed; run `pip install 'kreg[cute]'`")
    ):
        require_toolchain(make_kernel(backend="cute"), make_spec())


def test_artifact_of_another_compiler_has_another_entry_key(monkeypatch: pytest.MonkeyPatch):
    one = build()
    monkeypatch.setenv("FAKE_COMPILER", "2.0")
    two = build()
    assert one.key == two.key
    assert one.toolchain_key != two.toolchain_key
    assert one.cubin_digest == two.cubin_digest
    assert two.manifest.toolchain == {"fake-compiler": "2.0"}
