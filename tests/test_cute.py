"""The CuTe DSL backend, with the real compiler and no GPU."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from builders import HERE, SHIPPED, TARGET, child_environment, files_below, finish, make_kernel, python, start_python

import kreg
from kreg import REGISTRY, Artifact, Kernel, Param, Store
from kreg.backends import load_backend
from kreg.backends.cute import BACKEND, HARMLESS_VARIABLES, OPTIONS
from kreg.build import compile_artifact
from kreg.cubin import Cubin
from kreg.errors import CompileError, DeclarationError
from kreg.inventory import entries
from kreg.spec import CompileSpec
from kreg.upkeep import Verifier
from kreg.warming import COMPILED, FAILED, Outcome, Report

pytestmark = pytest.mark.skipif(BACKEND.toolchain() is None, reason="needs the compiler: pip install 'kreg[cute]'")
VARIANTS = [(REGISTRY.get(name), spec) for name in SHIPPED for spec in REGISTRY.get(name).specs()]


def stored(root: str, kernel: Kernel, spec: CompileSpec) -> Artifact:
    """Return what a store holds of a variant."""
    found = Store(root).read(spec, load_backend(kernel.backend).toolchain().fingerprint)
    assert found is not None
    return found


@pytest.mark.parametrize(("kernel", "spec"), VARIANTS, ids=[str(spec) for _, spec in VARIANTS])
def test_shipped_variant_is_compiled_for_its_target(shipped_store: str, kernel: Kernel, spec: CompileSpec):
    artifact = stored(shipped_store, kernel, spec)
    manifest = artifact.manifest
    image = Cubin(artifact.cubin)
    facts = image.facts(artifact.symbol)
    assert image.matches(spec.target)
    assert image.kernels() == [artifact.symbol]
    assert manifest.spec == spec
    assert manifest.parameters == list(facts.parameters)
    # Pointers and scalars only, one behind the other, and known in all.
    assert {size for _, size in manifest.parameters} <= {4, 8}
    assert manifest.parameter_bytes == sum(manifest.parameters[-1])
    assert facts.threads == manifest.launch.block
    assert (manifest.cubin_bytes, manifest.code_bytes) == (len(artifact.cubin), facts.code_bytes)
    assert 0 < manifest.registers <= 255
    assert manifest.local_bytes == 0, "registers are spilled"
    assert manifest.launch.shared_bytes <= 48 << 10
    assert (manifest.launch.shared_bytes > 0) == (kernel.name != "all_gather_pair")
    assert manifest.source_digest == kernel.source_digest()


def test_shipped_store_holds_every_warmed_variant_and_nothing_else(shipped_store: str):
    store = Store(shipped_store)
    found = list(entries(store))
    assert sorted(entry.manifest.spec_key for entry in found) == sorted(spec.key for _, spec in VARIANTS)
    verifier = Verifier(store)
    assert [finding for finding in map(verifier.check, found) if finding] == []
    assert not os.path.exists(f"{shipped_store}/logs")


def test_cubins_are_those_the_pinned_compiler_made(shipped_store: str):
    golden = json.loads((HERE / "data" / "golden_digests.json").read_text(encoding="utf-8"))
    if dict(BACKEND.toolchain().distributions) != golden["toolchain"]:
        pytest.skip(f"the golden digests are of another compiler than {BACKEND.toolchain()}")
    assert {str(spec): stored(shipped_store, kernel, spec).cubin_digest for kernel, spec in VARIANTS} == golden[
        "cubins"
    ]


def test_rank_and_sizes_are_arguments_at_run_time(shipped_store: str):
    # Fewer variants is a feature: what can be an argument at run time is no parameter.
    for kernel, _ in VARIANTS:
        assert {param.name for param in kernel.params} <= {"world_size", "transport", "selection"}
    pairs = [stored(shipped_store, kernel, spec) for kernel, spec in VARIANTS if kernel.name == "all_gather_pair"]
    counts = {(a.manifest.params["world_size"], len(a.manifest.parameters)) for a in pairs}
    assert len(counts) == len({world_size for world_size, _ in counts})


def test_compile_gives_the_same_bytes_in_any_process_folder_order_and_hash_seed(shipped_store: str, tmp_path: Path):
    children, folders = [], []
    for seed, order in (("1", []), ("2", ["reversed"])):
        for name in ("current", "scratch"):
            (tmp_path / seed / name).mkdir(parents=True)
            folders.append(tmp_path / seed / name)
        variables = {"PYTHONHASHSEED": seed, "TMPDIR": str(tmp_path / seed / "scratch")}
        before = os.getcwd()
        os.chdir(tmp_path / seed / "current")
        children.append(start_python("compile_shipped.py", TARGET, *order, **variables))
        os.chdir(before)
    one, two = (sorted(finish(child).splitlines()) for child in children)
    warmed = [(kernel, spec) for kernel, spec in VARIANTS if spec.target == TARGET]
    assert one == two == sorted(f"{spec} {stored(shipped_store, *v).cubin_digest}" for v in warmed for spec in v[1:])
    # The DSL drops files into the current folder; kreg gives it one of its own and removes that.
    assert [list(files_below(folder)) for folder in folders] == [[]] * 4
    assert [os.listdir(folder) for folder in folders[::2]] == [[]] * 2


SAMPLES = Path(__file__).with_name("cute_samples.py")
WAYS = ("right", "wrong", "raise", "block", "two")


def sample(**overrides: object) -> Kernel:
    """Return the declaration of the kernel in ``cute_samples``."""
    fields = {
        "name": "scale",
        "backend": "cute",
        "build": "cute_samples:build",
        "params": (Param("way", str, allowed=WAYS, default="right"),),
        "targets": ("sm_90a", "sm_100f", "sm_80"),
        "file": str(SAMPLES),
        "sources": (SAMPLES.name,),
    }
    return make_kernel(**{**fields, **overrides})


def compiles() -> dict[str, tuple[Kernel, CompileSpec]]:
    """Return what the samples are compiled as, by what is special about it."""
    found = {way: (sample(), sample().spec(TARGET, {"way": way})) for way in WAYS}
    for target in ("sm_100f", "sm_80"):
        found[target] = sample(), sample().spec(target, {})
    for number, (name, change) in enumerate(
        {
            "no option": {"options": {"nonsense": 1}},
            "option of another type": {"options": {"opt_level": True}},
            "line_info": {"options": {"line_info": True}},
            "ptxas": {"options": {"ptxas_options": "--bogus-option"}},
            "no function": {"build": "cute_samples:nothing"},
            "no module": {"build": "no_such_module:build"},
            "no name": {"build": ""},
            "broken module": {"build": "cute_broken:build"},
        }.items(),
        start=2,
    ):
        # A version of its own gives each a key of its own: the build function is not part of one.
        kernel = sample(version=number, **change)
        found[name] = kernel, kernel.spec(TARGET, {})
    return found


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Outcome]]:
    """Return a store and what became of each sample, all compiled by one process."""
    root = str(tmp_path_factory.mktemp("samples") / "store")
    folder = tmp_path_factory.mktemp("modules")
    (folder / "cute_broken.py").write_text("from cutlass import no_such_name\n1 / 0\n", encoding="utf-8")
    asked = compiles()
    sys.path.append(str(folder))
    try:
        report: Report = kreg.warm(list(asked.values()), store=root, jobs=1)
    finally:
        sys.path.remove(str(folder))
    return root, dict(zip(asked, report.outcomes, strict=True))


def failure(samples: tuple[str, dict[str, Outcome]], name: str) -> tuple[str, str]:
    """Return message and log of a sample that must have failed and left nothing."""
    root, outcomes = samples
    outcome = outcomes[name]
    assert outcome.status == FAILED
    assert Store(root).toolchain_keys(outcome.spec) == []
    log = Path(outcome.log_path).read_text(encoding="utf-8") if outcome.log_path else ""
    assert "\x1b" not in outcome.error + log, "colours are for terminals"
    return outcome.error, log


def test_sample_is_compiled(samples: tuple[str, dict[str, Outcome]]):
    root, outcomes = samples
    assert outcomes["right"].status == COMPILED
    manifest = stored(root, sample(), outcomes["right"].spec).manifest
    assert manifest.parameters == [(0, 8), (8, 4)]
    assert (manifest.launch.block, manifest.launch.grid) == ((128, 1, 1), (1, 1, 1))
    assert set(manifest.toolchain) >= {"nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base"}


@pytest.mark.parametrize("target", ["sm_100f", "sm_80"])
def test_sample_is_compiled_for_family_and_plain_targets(samples: tuple[str, dict[str, Outcome]], target: str):
    root, outcomes = samples
    assert outcomes[target].error is None
    assert Cubin(stored(root, sample(), outcomes[target].spec).cubin).matches(target)


def test_option_is_passed_on_and_part_of_the_key(samples: tuple[str, dict[str, Outcome]]):
    root, outcomes = samples
    kernel, spec = compiles()["line_info"]
    artifact = stored(root, kernel, spec)
    assert artifact.manifest.options == {"line_info": True}
    assert b".debug_line" in artifact.cubin
    assert b".debug_line" not in stored(root, sample(), outcomes["right"].spec).cubin


def test_wrong_device_code_is_an_error_with_a_log_that_names_the_line(samples: tuple[str, dict[str, Outcome]]):
    error, log = failure(samples, "wrong")
    why = "TypeError: unsupported operand type(s) for +: 'Float32' and 'str'"
    assert error == f"cannot compile scale@1[way=wrong]:sm_90a: {why}"
    line = 1 + SAMPLES.read_text(encoding="utf-8").splitlines().index(
        '            tX[thread] = tX[thread] + "a string"'
    )
    assert why in log
    assert re.search(rf'cute_samples\.py"?,? line {line}\b|cute_samples\.py:{line}\b', log)


def test_error_of_ptxas_carries_what_ptxas_said(samples: tuple[str, dict[str, Outcome]]):
    error, log = failure(samples, "ptxas")
    assert re.match(r"cannot compile scale@\d+:sm_90a: .*PTX assembly failed: Unknown option '-bogus-option'$", error)
    assert "ptxas fatal   : Unknown option '-bogus-option'" in log


def test_build_function_that_raises_is_an_error_with_its_log(samples: tuple[str, dict[str, Outcome]]):
    error, log = failure(samples, "raise")
    assert error == "cannot compile scale@1[way=raise]:sm_90a: ZeroDivisionError: while building"
    assert "cute_samples.py" in log


def test_block_that_differs_from_the_declared_one_is_refused(samples: tuple[str, dict[str, Outcome]]):
    error, _ = failure(samples, "block")
    assert error == "scale@1[way=block]:sm_90a was compiled for blocks of (128, 1, 1), declared (64, 1, 1)"


def test_two_kernels_in_one_are_refused(samples: tuple[str, dict[str, Outcome]]):
    error, _ = failure(samples, "two")
    assert error.startswith(
        "scale@1[way=two]:sm_90a compiles to 2 kernels, not one: kernel_cutlass_kernel_cute_samples"
    )


@pytest.mark.parametrize(("name", "shown"), [("no option", "nonsense=1"), ("option of another type", "opt_level=True")])
def test_option_that_is_not_one_is_refused(samples: tuple[str, dict[str, Outcome]], name: str, shown: str):
    error, _ = failure(samples, name)
    known = ", ".join(OPTIONS)
    assert re.fullmatch(rf"scale@\d+:sm_90a: compile option {shown} is not one of {known}", error)


@pytest.mark.parametrize(
    ("name", "build", "why"),
    [
        ("no function", "cute_samples:nothing", "module 'cute_samples' has no attribute 'nothing'"),
        ("no module", "no_such_module:build", "No module named 'no_such_module'"),
        ("no name", "", ""),
        ("broken module", "cute_broken:build", "cannot import name 'no_such_name' from 'cutlass'"),
    ],
)
def test_build_function_that_is_not_there_is_named(
    samples: tuple[str, dict[str, Outcome]], name: str, build: str, why: str
):
    error, _ = failure(samples, name)
    assert re.match(rf"scale@\d+: cannot find its build function {re.escape(repr(build))}: {re.escape(why)}", error)


def test_module_of_a_build_function_that_raises_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "raising.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = sample(build="raising:build")
    message = "^scale@1: cannot find its build function 'raising:build': division by zero$"
    with pytest.raises(DeclarationError, match=message):
        compile_artifact(kernel, kernel.spec(TARGET, {}))


def test_variable_that_could_change_code_is_refused(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("CUTE_DSL_LINEINFO", "1"), ("CUTE_DSL_ENABLE_ASSERTIONS", "1"), ("CUTE_DSL_KEEP", "")):
        monkeypatch.setenv(name, value)
    with pytest.raises(CompileError) as caught:
        compile_artifact(sample(), sample().spec(TARGET, {}))
    assert str(caught.value) == (
        "cannot compile scale@1:sm_90a: CUTE_DSL_ENABLE_ASSERTIONS, CUTE_DSL_LINEINFO would change the code unseen; "
        "unset it"
    )


def test_variables_that_do_no_harm_do_none(shipped_store: str, tmp_path: Path):
    values = {"ARCH": "sm_80", "CACHE_DIR": str(tmp_path), "DUMP_DIR": str(tmp_path), "LOG_LEVEL": "40"}
    assert {f"CUTE_DSL_{name}" for name in values} <= HARMLESS_VARIABLES
    code = (
        "kernel = REGISTRY.get('kimi_topk16'); print(compile_artifact(kernel, kernel.spec('sm_90a', {})).cubin_digest)"
    )
    kernel = REGISTRY.get("kimi_topk16")
    environment = child_environment(**{f"CUTE_DSL_{name}": value for name, value in values.items()})
    printed = python(
        f"from kreg import REGISTRY; from kreg.build import compile_artifact; {code}",
        environment=environment,
        cwd=tmp_path,
    )
    assert printed.split()[-1] == stored(shipped_store, kernel, kernel.spec(TARGET, {})).cubin_digest
