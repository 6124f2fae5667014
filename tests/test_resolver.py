"""Resolving: memory, store, compiler, in that order, and never less than what could be had."""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import fake_backend
import numpy as np
import pytest
from builders import (
    entry_path,
    flip,
    make_artifact,
    make_kernel,
    object_path,
    raises_os_error,
    read_spec,
    resolve_anew,
    warnings_of,
)
from fake_backend import KERNEL

import kreg
from kreg import Artifact, Resolver, Store, keylock
from kreg.errors import CompileError, KregError, MissError, SpecError, StoreError, ToolchainError

Runs = Callable[[], int]


def resolve(root: object, **changes: object) -> Artifact:
    """Resolve the fake kernel at size 1."""
    return kreg.resolve(KERNEL, **{"size": 1, "target": "sm_90a", "store": root, **changes})


# The three places.


def test_first_resolve_compiles_and_publishes(root: str, runs: Runs):
    artifact = resolve(root)
    assert (runs(), artifact.origin) == (1, "compiled")
    assert read_spec(Store(root), artifact).cubin == artifact.cubin


def test_second_resolve_is_a_hit_of_memory(root: str, runs: Runs):
    artifact = resolve(root)
    shutil.rmtree(root)
    assert resolve(root) is artifact
    assert resolve(root, note="plain") is artifact
    assert runs() == 1


def test_another_process_hits_the_store(root: str, runs: Runs):
    compiled = resolve(root)
    found = resolve_anew(root)
    assert found is not compiled
    assert (found.cubin, found.manifest_bytes) == (compiled.cubin, compiled.manifest_bytes)
    assert found.origin == str(entry_path(Store(root), compiled))
    assert runs() == 1


def test_other_variants_targets_and_stores_are_other_artifacts(root: str, runs: Runs):
    found = [
        resolve(root),
        resolve(root, size=2),
        resolve(root, note="bright"),
        resolve(root, target="sm_100a"),
        resolve(f"{root}-2"),
    ]
    assert len({id(artifact) for artifact in found}) == len(found) == runs()
    assert [found[3].manifest.target, found[2].manifest.params] == ["sm_100a", {"size": 1, "note": "bright"}]


def test_kernel_may_be_a_name(root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kreg.resolver.REGISTRY", kreg.Registry([KERNEL], discover=False))
    assert kreg.resolve("fake", size=1, target="sm_90a", store=root).key == resolve(root).key


def test_store_may_be_a_path_a_store_or_configured(root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KREG_STORE", root)
    found = {id(resolve(given)) for given in (root, Path(root), Store(root), None)}
    assert (len(found), runs()) == (1, 1)


def test_store_may_be_relative(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert resolve("store") is resolve(root)


def test_forget_reads_the_store_again(root: str):
    artifact = resolve(root)
    kreg.forget()
    assert resolve(root) is not artifact


def test_order_of_parameters_does_not_matter(root: str, runs: Runs):
    one = kreg.resolve(KERNEL, size=1, note="bright", target="sm_90a", store=root)
    assert kreg.resolve(KERNEL, note="bright", size=1, target="sm_90a", store=root) is one
    assert runs() == 1


# Bad requests, also after a good one that is equal to them.

BAD_VALUES = [
    (1.0, "fake@1: size is float 1.0; it takes int"),
    (True, "fake@1: size is bool True; it takes int"),
    (np.int64(1), "fake@1: size is numpy.int64 np.int64(1); it takes int"),
    (float("nan"), "fake@1: size is float nan; it takes int"),
    ([1], "fake@1: size is list [1]; it takes int"),
    ({1}, "fake@1: size is set {1}; it takes int"),
    (np.array(1), "fake@1: size is numpy.ndarray array(1); it takes int"),
    ("1", "fake@1: size is str '1'; it takes int"),
    (99, "fake@1: size=99 is not one of 1, 2, 3"),
]


@pytest.mark.parametrize("after_a_hit", [False, True])
@pytest.mark.parametrize(("value", "message"), BAD_VALUES)
def test_bad_value_is_refused(root: str, runs: Runs, value: object, message: str, after_a_hit: bool):
    if after_a_hit:
        resolve(root)
        resolve(root)
    with pytest.raises(SpecError, match=f"^{re.escape(message)}"):
        resolve(root, size=value)
    assert runs() == int(after_a_hit)


def test_object_as_a_value_is_refused(root: str):
    with pytest.raises(SpecError, match=r"^fake@1: size is object <object object at 0x"):
        resolve(root, size=object())


def test_tensor_as_a_value_is_refused(root: str):
    torch = pytest.importorskip("torch")
    resolve(root)
    with pytest.raises(SpecError, match=re.escape("fake@1: size is torch.Tensor tensor(1); it takes int")):
        resolve(root, size=torch.tensor(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sise": 1}, "fake@1 has no parameter 'sise' (did you mean 'size'?); its parameters are size, note, mode"),
        (
            {"target": "sm_90"},
            "fake@1 is declared for sm_90a, sm_100a, sm_120a, not for sm_90 (did you mean 'sm_90a'?)",
        ),
        ({"target": "sm_90x"}, "target 'sm_90x' is not an architecture"),
        ({"target": ""}, "target '' is not an architecture"),
        ({"target": "SM_90A"}, "(did you mean 'sm_90a'?)"),
        ({"target": None}, "target is NoneType None"),
    ],
)
def test_bad_request_is_refused(root: str, runs: Runs, changes: dict[str, object], message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        resolve(root, **changes)
    assert runs() == 0
    assert not os.path.exists(root)


def test_unknown_kernel_is_refused():
    with pytest.raises(
        SpecError, match=re.escape("no kernel is called 'all_gather' (did you mean 'all_gather_pair'?)")
    ):
        kreg.resolve("all_gather", target="sm_90a")


@pytest.mark.parametrize("after_a_hit", [False, True])
def test_bad_policy_is_refused(root: str, after_a_hit: bool):
    if after_a_hit:
        resolve(root)
    with pytest.raises(KregError, match=r"^policy is 'forzen'; it is one of compile, locked, frozen$"):
        resolve(root, policy="forzen")


# Frozen.


def freeze_by_call(_: pytest.MonkeyPatch) -> dict[str, object]:
    kreg.freeze()
    return {}


def freeze_by_variable(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("KREG_POLICY", "frozen")
    return {}


def freeze_by_argument(_: pytest.MonkeyPatch) -> dict[str, object]:
    return {"policy": "frozen"}


@pytest.fixture(params=[freeze_by_call, freeze_by_variable, freeze_by_argument])
def frozen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, object]]:
    """Return a function that freezes, in each of three ways, and returns the arguments that belong to it."""
    return lambda: request.param(monkeypatch)


def test_frozen_hits_the_store(root: str, runs: Runs, frozen: Callable[[], dict[str, object]]):
    resolve(root)
    assert resolve_anew(root, **frozen()).symbol == "fake_1"
    assert runs() == 1


def test_frozen_hits_memory(root: str, frozen: Callable[[], dict[str, object]]):
    artifact = resolve(root)
    shutil.rmtree(root)
    assert resolve(root, **frozen()) is artifact


def test_frozen_never_compiles(root: str, runs: Runs, frozen: Callable[[], dict[str, object]]):
    with pytest.raises(MissError, match="the policy is frozen"):
        resolve(root, **frozen())
    assert runs() == 0
    assert not os.path.exists(root)


def test_freeze_overrules_an_argument(root: str, runs: Runs):
    kreg.freeze()
    with pytest.raises(MissError, match="the policy is frozen"):
        resolve(root, policy="compile")
    assert runs() == 0


def test_thaw_undoes_freeze(root: str):
    assert not kreg.is_frozen()
    kreg.freeze()
    kreg.freeze()
    assert kreg.is_frozen()
    kreg.thaw()
    assert not kreg.is_frozen()
    assert resolve(root).origin == "compiled"


def test_miss_names_spec_place_and_command(root: str):
    with pytest.raises(MissError) as caught:
        resolve(root, size=3, note="two words", policy="frozen")
    key = KERNEL.spec("sm_90a", {"size": 3, "note": "two words"}).key
    assert str(caught.value) == (
        f'no artifact for `fake@1[size=3,note="two words"]:sm_90a` ({key[:12]}) in `{root}`, and the policy is frozen; '
        f"run `kreg warm --kernel fake --target sm_90a --param size=3 --param 'note=\"two words\"' --store {root}`"
    )


def test_miss_of_the_configured_store_needs_no_store_in_the_command(root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KREG_STORE", root)
    with pytest.raises(MissError) as caught:
        resolve(None, policy="frozen")
    assert str(caught.value).endswith("run `kreg warm --kernel fake --target sm_90a --param size=1`")


def test_command_of_a_miss_makes_the_hit(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch):
    from click.testing import CliRunner
    from kreg.cache_tools import main

    monkeypatch.setattr("kreg.cache_tools.warm.REGISTRY", kreg.Registry([KERNEL], discover=False))
    root = str(tmp_path / "a store")
    with pytest.raises(MissError) as caught:
        resolve(root, size=3, note="two words", policy="frozen")
    command = shlex.split(str(caught.value).rpartition("run `")[2].rstrip("`"))
    assert command[0] == "kreg"
    done = CliRunner().invoke(main, command[1:])
    assert done.exit_code == 0, done.output
    assert resolve(root, size=3, note="two words", policy="frozen").symbol == "fake_3"
    assert runs() == 1


def test_frozen_refuses_a_bad_entry(root: str, runs: Runs):
    path = entry_path(Store(root), resolve(root))
    flip(path, 500)
    with pytest.raises(StoreError, match=f"^manifest {re.escape(str(path))} does not match its own digest; set aside"):
        resolve_anew(root, policy="frozen")
    with pytest.raises(MissError):
        resolve(root, policy="frozen")
    assert runs() == 1


def test_frozen_says_that_the_store_cannot_be_read(root: str):
    Path(root).touch()
    with pytest.raises(StoreError, match=r"is not a directory; set KREG_STORE or --store to one$"):
        resolve(root, policy="frozen")


# Without the store.


def break_open(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(
        os, "open", raises_os_error(errno.EACCES, lambda path, *_: str(path).startswith(f"{root}/tmp/"), os.open)
    )
    return "cannot write .*: Permission denied"


def break_rename(_: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(os, "rename", raises_os_error(errno.ENOSPC, lambda *_: True, os.rename))
    return "cannot (write|create) .*: No space left on device"


def break_mkdir(_: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(os, "mkdir", raises_os_error(errno.EROFS, lambda *_: True, os.mkdir))
    return "cannot create the store .*: Read-only file system"


def break_read(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    Store(root).prepare()
    monkeypatch.setattr(os, "stat", raises_os_error(errno.EIO, lambda path, *_: str(path) == root, os.stat))
    return "cannot use the store .*: Input/output error"


def be_a_file(root: str, _: pytest.MonkeyPatch) -> str:
    Path(root).touch()
    return "the store .* is not a directory; set KREG_STORE or --store to one"


def be_foreign(root: str, _: pytest.MonkeyPatch) -> str:
    Path(root).mkdir()
    Path(root, "notes.txt").touch()
    return ".* is not empty and not a kreg store .*; name another directory"


@pytest.mark.parametrize("break_it", [break_open, break_rename, break_mkdir, break_read, be_a_file, be_foreign])
def test_store_that_cannot_be_used_costs_one_warning(
    root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch, break_it: Callable[[str, pytest.MonkeyPatch], str]
):
    message = break_it(root, monkeypatch)
    found, said = warnings_of(lambda: [resolve(root, size=size) for size in (1, 2, 1, 2)])
    assert [artifact.symbol for artifact in found] == ["fake_1", "fake_2"] * 2
    assert runs() == 2
    assert len(said) == 1
    assert re.fullmatch(f"{message}; going on without the store", said[0])


def test_default_store_of_another_user_costs_one_warning(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    Store().prepare()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    found, said = warnings_of(lambda: resolve(None))
    assert (found.origin, runs(), len(said)) == ("compiled", 1, 1)
    assert re.match(r"the default store .*/kreg belongs to user \d+; to use it all the same, name it", said[0])


def test_store_without_locks_is_used(root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch):
    import fcntl

    monkeypatch.setattr(fcntl, "flock", raises_os_error(errno.ENOLCK, lambda *_: True, fcntl.flock))
    resolve(root)
    resolve_anew(root)
    assert runs() == 1


@pytest.mark.parametrize("place", [entry_path, object_path])
def test_bad_entry_costs_one_warning_and_a_compile(root: str, runs: Runs, place: Callable[..., Path]):
    path = place(Store(root), resolve(root))
    flip(path, 500)
    kreg.forget()
    found, said = warnings_of(lambda: resolve(root))
    assert (found.origin, runs(), len(said)) == ("compiled", 2, 1)
    assert re.fullmatch(
        rf".* does not match its (own )?digest; set aside as {root}/quarantine/.*; compiling it again", said[0]
    )
    assert warnings_of(lambda: resolve_anew(root))[1] == []
    assert runs() == 2


def test_bad_entry_of_a_store_that_cannot_be_written_is_said_once(
    root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch
):
    flip(entry_path(Store(root), resolve(root)), 500)
    kreg.forget()
    monkeypatch.setattr(os, "rename", raises_os_error(errno.EROFS, lambda *_: True, os.rename))
    found, said = warnings_of(lambda: resolve(root))
    assert (found.origin, runs()) == ("compiled", 2)
    assert [message.rpartition("; ")[2] for message in said] == ["compiling it again", "going on without the store"]


def test_entry_of_a_newer_format_is_not_written_over(root: str, runs: Runs):
    path = entry_path(Store(root), resolve(root))
    newer = path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2')
    path.write_bytes(newer)
    kreg.forget()
    found, said = warnings_of(lambda: resolve(root))
    assert (found.origin, runs()) == ("compiled", 2)
    assert said == [f"manifest {path} has format 2; this kreg reads format 1; going on without the store"]
    assert path.read_bytes() == newer


# Compile errors, and no compiler.


def test_compile_error_is_raised_with_its_log_and_publishes_nothing(root: str):
    for _ in range(2):
        with pytest.raises(CompileError, match=re.escape("fake@1[size=1,mode=refuse]:sm_90a: expected ';'")) as caught:
            resolve(root, mode="refuse")
        assert caught.value.log == fake_backend.LOG
    assert list(Store(root).entry_files()) == list(Store(root).object_files()) == []


@pytest.mark.parametrize("mode", ["garbage", "other_target", "other_symbol", "other_block"])
def test_cubin_that_is_refused_is_not_published(root: str, mode: str):
    with pytest.raises(CompileError):
        resolve(root, mode=mode)
    assert list(Store(root).object_files()) == []


def test_lock_is_free_after_a_compile_error(root: str):
    spec = KERNEL.spec("sm_90a", {"size": 1, "mode": "refuse"})
    with pytest.raises(CompileError):
        resolve(root, mode="refuse")
    with Store(root).key_lock(spec.key, 0) as held:
        assert held


def test_process_without_a_compiler_takes_the_only_toolchain(root: str, monkeypatch: pytest.MonkeyPatch):
    compiled = resolve(root)
    monkeypatch.setenv("FAKE_COMPILER", "none")
    assert resolve_anew(root).cubin == compiled.cubin
    assert resolve_anew(root, policy="frozen").cubin == compiled.cubin


def test_process_without_a_compiler_does_not_choose_between_toolchains(root: str, monkeypatch: pytest.MonkeyPatch):
    keys = []
    for version in ("1.0", "2.0"):
        monkeypatch.setenv("FAKE_COMPILER", version)
        keys.append(resolve_anew(root).toolchain_key[:12])
    monkeypatch.setenv("FAKE_COMPILER", "none")
    with pytest.raises(ToolchainError) as caught:
        resolve_anew(root)
    assert str(caught.value) == (
        f"fake@1[size=1]:sm_90a is in {root} under 2 toolchains ({', '.join(sorted(keys))}) and no compiler is "
        f"installed to choose by; name a lockfile, or remove the others with `kreg clear`"
    )


def test_process_takes_the_artifact_of_its_own_compiler(root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch):
    for version in ("1.0", "2.0", "1.0", "2.0"):
        monkeypatch.setenv("FAKE_COMPILER", version)
        assert resolve_anew(root).manifest.toolchain == {"fake-compiler": version}
    assert runs() == 2


def test_miss_without_a_compiler_says_what_to_install(root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_COMPILER", "none")
    with pytest.raises(ToolchainError) as caught:
        resolve(root)
    key = KERNEL.spec("sm_90a", {"size": 1}).key
    assert str(caught.value) == (
        f"no artifact for `fake@1[size=1]:sm_90a` ({key[:12]}) in `{root}`, and its compiler is not installed here "
        f"(`pip install fake-compiler`); run `kreg warm --kernel fake --target sm_90a --param size=1 --store {root}`"
    )


def test_miss_of_a_shipped_kernel_without_a_compiler_names_the_extra(root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kreg.backends.cute.installed_versions", lambda _names: {})
    with pytest.raises(
        ToolchainError, match=re.escape("(`pip install 'kreg[cute]'`); run `kreg warm --kernel kimi_topk16")
    ):
        kreg.resolve("kimi_topk16", target="sm_90a", store=root)


# One compile per key.


def test_artifact_published_while_waiting_is_taken(root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch):
    store = Store(root)
    store.prepare()
    spec = KERNEL.spec("sm_90a", {"size": 1})
    lock = store.key_lock(spec.key, 0)
    lock.__enter__()

    def publish(_seconds: float) -> None:
        if runs() == 0:
            from kreg.build import compile_artifact

            store.publish(compile_artifact(KERNEL, spec))
            lock.__exit__()

    monkeypatch.setattr(keylock, "time", SimpleNamespace(monotonic=time.monotonic, sleep=publish))
    assert resolve(root).origin == str(entry_path(store, make_artifact(1)))
    assert runs() == 1


def test_wait_for_another_process_is_bounded_and_said(
    root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    store = Store(root)
    store.prepare()
    monkeypatch.setenv("KREG_WAIT", "0.1")
    monkeypatch.setattr(keylock, "_REPORT_SECONDS", 0.0)
    spec = KERNEL.spec("sm_90a", {"size": 1})
    with store.key_lock(spec.key, 0), caplog.at_level(logging.WARNING, "kreg"):
        assert resolve(root).origin == "compiled"
    assert runs() == 1
    assert read_spec(store, make_artifact(1)) is not None
    lines = {record.getMessage() for record in caplog.records}
    holder = f"held by process {os.getpid()} on {os.uname().nodename}"
    assert lines == {f"waiting for {root}/locks/{spec.key[:2]}.lock for 0 s, {holder}"}


def test_threads_that_want_one_key_compile_once(root: str, runs: Runs):
    barrier = threading.Barrier(8)
    found: list[Artifact] = []

    def race() -> None:
        barrier.wait()
        found.append(resolve(root, mode="slow"))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({artifact.cubin for artifact in found}) == 1
    assert (len(found), runs()) == (8, 1)


def test_resolver_remembers_by_spec(store: Store, runs: Runs):
    resolver = Resolver(store)
    spec = KERNEL.spec("sm_90a", {"size": 1})
    artifact = resolver.resolve(KERNEL, spec)
    assert resolver.resolve(KERNEL, KERNEL.spec("sm_90a", {"size": 1, "note": "plain"})) is artifact
    assert Resolver(store).resolve(KERNEL, spec) is not artifact
    assert runs() == 1


def test_version_is_part_of_what_is_remembered(root: str, runs: Runs):
    one = resolve(root)
    two = kreg.resolve(make_kernel(version=2), size=1, target="sm_90a", store=root)
    assert one.key != two.key
    assert runs() == 2


def test_hit_gives_no_warning(root: str):
    resolve(root)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_anew(root)
