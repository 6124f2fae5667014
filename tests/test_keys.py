"""Keys: they change when a person says so, and never otherwise."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import golden_keys
import pytest
from builders import HERE, SHIPPED, child_environment, make_kernel

from kreg import REGISTRY, Kernel, Param, Registry
from kreg.digest import sha256

FUSED = "all_gather_pair_kimi_topk"
PAIR_PARAMS = (
    Param("world_size", int, allowed=(2, 4)),
    Param("transport", str, allowed=("pull", "push")),
)


def redeclare(kernel: Kernel, **changes: object) -> Kernel:
    """Return a declaration with some fields changed."""
    fields = {name: getattr(kernel, name) for name in Kernel.__slots__}
    return Kernel(**{**fields, "options": dict(kernel.options), **changes})


def keys(kernels: Iterable[Kernel]) -> dict[tuple[str, str], str]:
    """Return the key of every warmed variant, by kernel and what follows the version in its text."""
    return {
        (kernel.name, str(spec).removeprefix(kernel.label)): spec.key for kernel in kernels for spec in kernel.specs()
    }


def test_bump_of_the_fused_kernel_moves_its_keys_and_no_others():
    shipped = [REGISTRY.get(name) for name in SHIPPED]
    assert REGISTRY.get(FUSED).version == 2
    at_2 = keys(Registry(shipped, discover=False).kernels())
    at_1 = keys(
        Registry(
            [redeclare(kernel, version=1) if kernel.name == FUSED else kernel for kernel in shipped], discover=False
        ).kernels()
    )
    assert at_1.keys() == at_2.keys()
    moved = {variant for variant in at_2 if at_1[variant] != at_2[variant]}
    assert moved == {variant for variant in at_2 if variant[0] == FUSED}
    assert {name for name, _ in at_2.keys() - moved} == {"all_gather_pair", "kimi_topk16"}
    assert set(at_1.values()) & {at_2[variant] for variant in moved} == set()


def golden() -> dict[str, str]:
    """Return the pinned keys."""
    return json.loads(Path(golden_keys.PATH).read_text(encoding="utf-8"))


def test_golden_keys_have_not_moved():
    assert golden_keys.current_keys() == golden()


def test_golden_keys_are_all_different_and_of_every_kernel():
    assert len(set(golden().values())) == len(golden())
    assert {text.partition("@")[0] for text in golden()} == set(SHIPPED)


def test_golden_keys_are_read_back_from_their_texts():
    assert {text: REGISTRY.parse(text).key for text in golden()} == golden()


def test_golden_key_is_the_digest_of_what_the_readme_describes():
    text = (
        '{"kernel":"all_gather_pair","options":{},"params":{"transport":"pull","world_size":2},'
        '"schema":1,"target":"sm_90a","version":1}'
    )
    assert golden()["all_gather_pair@1[world_size=2,transport=pull]:sm_90a"] == sha256(text.encode())


def print_keys(interpreter: str, **variables: str) -> str:
    """Return what ``golden_keys.py`` prints under an interpreter."""
    command = [interpreter, str(HERE / "golden_keys.py")]
    environment = {**child_environment(), "PYTHONPATH": "", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_keys_are_the_same_under_every_hash_seed():
    printed = [print_keys(sys.executable, PYTHONHASHSEED=seed) for seed in ("0", "1", "2", "3", "4", "random")]
    assert {text.strip() for text in printed} == {Path(golden_keys.PATH).read_text(encoding="utf-8").strip()}


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_keys_are_the_same_under_every_python(version: str):
    interpreter = shutil.which(f"python{version}")
    if interpreter is None or subprocess.run([interpreter, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no python{version} here")
    assert json.loads(print_keys(interpreter)) == golden()


def test_keys_are_the_same_in_another_environment(tmp_path: Path):
    variables = {"KREG_STORE": str(tmp_path), "KREG_POLICY": "frozen", "LC_ALL": "C", "HOME": str(tmp_path)}
    assert json.loads(print_keys(sys.executable, **variables)) == golden()


def key(change: Mapping[str, object], **params: object) -> str:
    """Return the key of a variant of a kernel that differs from the baseline in ``change``."""
    chosen = {"world_size": 2, "transport": "pull", **params}
    return make_kernel(**{"name": "pair", "params": PAIR_PARAMS, **change}).spec("sm_90a", chosen).key


BASELINE = key({})


@pytest.mark.parametrize(
    ("change", "params"),
    [
        ({"name": "pairs"}, {}),
        ({"version": 2}, {}),
        ({"options": {"opt_level": 2}}, {}),
        ({}, {"world_size": 4}),
        ({}, {"transport": "push"}),
        ({"params": (*PAIR_PARAMS, Param("traced", bool, allowed=(False, True)))}, {"traced": False}),
        ({"params": (*PAIR_PARAMS, Param("traced", bool, allowed=(False, True), default=False))}, {"traced": True}),
    ],
)
def test_key_differs_on(change: dict[str, object], params: dict[str, object]):
    assert key(change, **params) != BASELINE


@pytest.mark.parametrize(
    ("change", "params"),
    [
        # A parameter with a default, given or not, of any type and at any place.
        ({"params": (*PAIR_PARAMS, Param("traced", bool, allowed=(False, True), default=False))}, {}),
        ({"params": (*PAIR_PARAMS, Param("traced", bool, allowed=(False, True), default=False))}, {"traced": False}),
        ({"params": (Param("stages", int, allowed=(1, 2), default=1), *PAIR_PARAMS)}, {"stages": 1}),
        # What is declared beside the key.
        ({"params": PAIR_PARAMS[::-1]}, {}),
        ({"params": (Param("world_size", int, allowed=range(2, 17), warm=(2,)), PAIR_PARAMS[1])}, {}),
        ({"targets": ("sm_90a",)}, {}),
        ({"targets": ("sm_100a", "sm_90a", "sm_80", "sm_120a")}, {}),
        ({"backend": "cute"}, {}),
        ({"build": "elsewhere:build"}, {}),
        ({"sources": ("tiny_elf.py",)}, {}),
        ({"file": "/elsewhere/declared.py"}, {}),
        ({"summary": "another one"}, {}),
        ({"options": {}}, {}),
    ],
)
def test_key_is_the_same_for(change: dict[str, object], params: dict[str, object]):
    assert key(change, **params) == BASELINE


def test_key_does_not_see_the_order_of_arguments():
    kernel = make_kernel(name="pair", params=PAIR_PARAMS)
    assert kernel.spec("sm_90a", {"transport": "pull", "world_size": 2}).key == BASELINE


def test_key_of_another_target_differs():
    kernel = make_kernel(name="pair", params=PAIR_PARAMS)
    found = {kernel.spec(target, {"world_size": 2, "transport": "pull"}).key for target in kernel.targets}
    assert len(found) == len(kernel.targets) == 3
