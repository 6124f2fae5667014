"""Configuration: argument, then environment, then default."""

from __future__ import annotations

import os
import pwd
import re
import sys
from pathlib import Path

import pytest
from builders import python

from kreg import config
from kreg.errors import KregError


@pytest.mark.parametrize(
    ("given", "variable", "answer"),
    [
        (None, None, "compile"),
        (None, "", "compile"),
        (None, " ", "compile"),
        (None, "frozen", "frozen"),
        (None, " frozen ", "frozen"),
        ("compile", "frozen", "compile"),
        ("frozen", None, "frozen"),
        ("frozen", "nonsense", "frozen"),
    ],
)
def test_policy(monkeypatch: pytest.MonkeyPatch, given: str | None, variable: str | None, answer: str):
    if variable is not None:
        monkeypatch.setenv("KREG_POLICY", variable)
    assert config.policy(given) == answer


def test_policy_that_is_none(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(KregError, match=r"^policy is 'Frozen'; it is one of compile, locked, frozen$"):
        config.policy("Frozen")
    monkeypatch.setenv("KREG_POLICY", "freeze")
    with pytest.raises(KregError, match=r"^KREG_POLICY is 'freeze'; it is one of compile, locked, frozen$"):
        config.policy()


@pytest.mark.parametrize(
    ("given", "variable", "answer"),
    [
        (None, None, None),
        (None, "", None),
        (None, " ", None),
        (None, "/a/b", "/a/b"),
        (None, "~/x", "/home/of/test/x"),
        (None, "x/y", "/here/x/y"),
        (None, "/a/../b/", "/b"),
        ("", "/a/b", None),
        ("/c", "/a/b", "/c"),
        ("~/x", None, "/home/of/test/x"),
        ("x", None, "/here/x"),
        (Path("x") / "y", None, "/here/x/y"),
    ],
)
def test_named_root(
    monkeypatch: pytest.MonkeyPatch, given: str | Path | None, variable: str | None, answer: str | None
):
    monkeypatch.setenv("HOME", "/home/of/test")
    monkeypatch.setattr(os, "getcwd", lambda: "/here")
    if variable is not None:
        monkeypatch.setenv("KREG_STORE", variable)
    assert config.named_root(given) == answer


@pytest.mark.parametrize(
    ("variable", "answer"),
    [
        (None, "/home/of/test/.cache/kreg"),
        ("", "/home/of/test/.cache/kreg"),
        (" ", "/home/of/test/.cache/kreg"),
        ("relative/cache", "/home/of/test/.cache/kreg"),
        ("~/cache", "/home/of/test/.cache/kreg"),
        ("/var/cache/me", "/var/cache/me/kreg"),
    ],
)
def test_default_root(monkeypatch: pytest.MonkeyPatch, variable: str | None, answer: str):
    set_homes(monkeypatch, "/home/of/test", variable)
    assert config.default_root() == answer


@pytest.mark.parametrize("variable", [None, "", "/var/cache/me"])
@pytest.mark.parametrize("home", ["/home/of/test", None])
def test_default_root_is_where_platformdirs_puts_it(
    monkeypatch: pytest.MonkeyPatch, home: str | None, variable: str | None
):
    platformdirs = pytest.importorskip("platformdirs")
    set_homes(monkeypatch, home, variable)
    assert config.default_root() == platformdirs.user_cache_dir("kreg", appauthor=False)


def set_homes(monkeypatch: pytest.MonkeyPatch, home: str | None, variable: str | None) -> None:
    for name, value in (("HOME", home), ("XDG_CACHE_HOME", variable)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


def test_default_root_without_home_is_the_account_s(monkeypatch: pytest.MonkeyPatch):
    set_homes(monkeypatch, None, None)
    assert config.default_root() == f"{pwd.getpwuid(os.getuid()).pw_dir}/.cache/kreg"


def test_default_root_without_any_home_says_what_to_set(monkeypatch: pytest.MonkeyPatch):
    set_homes(monkeypatch, None, None)

    def no_account(_uid: int) -> None:
        raise KeyError("no such account")

    monkeypatch.setattr(pwd, "getpwuid", no_account)
    with pytest.raises(KregError, match=r"^no home directory for the default store; set KREG_STORE to a directory$"):
        config.default_root()


def test_default_root_is_platformdirs_on_other_systems(monkeypatch: pytest.MonkeyPatch):
    platformdirs = pytest.importorskip("platformdirs")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: Path("/Users/me/Library/Caches/kreg"))
    assert config.default_root() == "/Users/me/Library/Caches/kreg"


@pytest.mark.parametrize(
    ("variable", "answer"),
    [(None, 600), ("", 600), (" ", 600), ("0", 0), ("2.5", 2.5), ("-1", 0), ("inf", float("inf"))],
)
def test_wait_seconds(monkeypatch: pytest.MonkeyPatch, variable: str | None, answer: float):
    if variable is not None:
        monkeypatch.setenv("KREG_WAIT", variable)
    assert config.wait_seconds() == answer


@pytest.mark.parametrize("text", ["soon", "1s", "nan"])
def test_wait_seconds_that_is_no_number(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("KREG_WAIT", text)
    with pytest.raises(KregError, match=f"^KREG_WAIT is '{text}'; it is a number of seconds$"):
        config.wait_seconds()


def test_environment_names_are_those_set_to_something(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("PRE_B", "1"), ("PRE_A", " "), ("PRE_C", ""), ("OTHER_PRE_", "1")):
        monkeypatch.setenv(name, value)
    assert config.environment_names("PRE_") == ["PRE_A", "PRE_B"]


def test_environment_is_read_when_it_is_asked_for_and_not_at_import():
    code = (
        "import os; from kreg import config, resolver, store\n"
        "os.environ['KREG_STORE'] = '/later'; os.environ['KREG_POLICY'] = 'frozen'\n"
        "print(store.Store().root, config.policy())"
    )
    assert python(code) == "/later frozen\n"


def test_variables_are_those_the_readme_lists():
    readme = Path(__file__).parent.parent / "README.md"
    source = Path(config.__file__).read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(KREG_\w+)` \|", readme.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(set(re.findall(r"\"(KREG_\w+)\"", source)))


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 1800.0), ("2.5", 2.5), ("0", 0.0), ("-1", 0.0), ("inf", 0.0), (" 7 ", 7.0)]
)
def test_compile_limit_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float):
    monkeypatch.setenv("KREG_COMPILE_LIMIT", text)
    assert config.compile_seconds() == seconds


@pytest.mark.parametrize("text", ["soon", "nan", "1 h"])
def test_compile_limit_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("KREG_COMPILE_LIMIT", text)
    with pytest.raises(KregError, match=rf"^KREG_COMPILE_LIMIT is '{text}'; it is a number of seconds$"):
        config.compile_seconds()
