"""The tree of errors, and warnings that point at the user's line."""

import argparse
import copy
import pickle
import sys
import traceback
import warnings
from pathlib import Path

import pytest

import devicekit
from devicekit import errors

TREE = {
    "DeviceError": (RuntimeError,),
    "DeviceSpecError": (errors.DeviceError, ValueError, argparse.ArgumentTypeError),
    "DeviceUnavailableError": (errors.DeviceError, argparse.ArgumentTypeError),
    "DeviceMismatchError": (errors.DeviceError,),
    "MoveError": (errors.DeviceError, TypeError),
    "PinMemoryError": (errors.DeviceError,),
    "WorkerDeviceError": (errors.DeviceError,),
    "DeviceFallbackWarning": (UserWarning,),
}


def test_the_tree_is_complete() -> None:
    classes = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert classes == set(TREE)


@pytest.mark.parametrize(("name", "bases"), TREE.items(), ids=list(TREE))
def test_one_class(name: str, bases: tuple[type, ...]) -> None:
    cls = getattr(errors, name)
    assert cls is getattr(devicekit, name)
    assert cls.__doc__
    for base in bases:
        assert issubclass(cls, base)
    error = cls("what, what was found, how to mend it")
    assert str(error) == "what, what was found, how to mend it"
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is cls
        assert str(other) == str(error)
    # Tracebacks show the name that users import.
    assert traceback.format_exception_only(error) == [
        f"devicekit.{name}: what, what was found, how to mend it\n"
    ]


def test_an_unavailable_device_says_which_and_why() -> None:
    error = errors.DeviceUnavailableError("text", "cuda", "no_driver")
    other = pickle.loads(pickle.dumps(error))
    assert (str(other), other.requested, other.reason) == ("text", "cuda", "no_driver")
    assert errors.DeviceUnavailableError("text").reason == ""


@pytest.mark.parametrize("error", [errors.DeviceSpecError, errors.DeviceUnavailableError])
def test_argparse_prints_it(error: type[Exception], capsys) -> None:
    def fail(text: str) -> None:
        raise error("our sentence")

    parser = argparse.ArgumentParser()
    parser.add_argument("--device", type=fail)
    with pytest.raises(SystemExit):
        parser.parse_args(["--device", "x"])
    assert "argument --device: our sentence" in capsys.readouterr().err


def test_a_warning_points_past_this_package(tmp_path: Path, monkeypatch) -> None:
    # A stand-in for a module of the package that calls another one, which warns.
    file = Path(errors.__file__).with_name("made_up_for_a_test.py")
    namespace = {"warn": errors.warn}
    code = "def inner():\n    warn('deep')\n\ndef outer():\n    inner()\n"
    exec(compile(code, file, "exec"), namespace)
    with pytest.warns(UserWarning, match="deep") as caught:
        namespace["outer"]()
    line = sys._getframe().f_lineno - 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


def test_a_warning_of_a_category() -> None:
    with pytest.warns(errors.DeviceFallbackWarning, match="text") as caught:
        errors.warn("text", errors.DeviceFallbackWarning)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(errors.DeviceFallbackWarning):
            errors.warn("text", errors.DeviceFallbackWarning)


def test_the_same_is_told_once() -> None:
    errors.forget_warnings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # where warnings are errors, every call raises
            with pytest.raises(UserWarning, match="one"):
                errors.warn_once("one")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for text in ("one", "two", "one"):
            errors.warn_once(text)
    assert [str(each.message) for each in caught] == ["one", "two"]
    assert caught[0].filename == __file__
    errors.forget_warnings()
    with pytest.warns(UserWarning, match="one"):
        errors.warn_once("one")
