"""`--over`: what is an address, and what is said without Ray."""

from __future__ import annotations

import sys

import pytest

from edgespec.cli.setup.servers import check_over
from edgespec.cluster import library
from edgespec.errors import UsageError


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found = {"ray", "grpc"}
    monkeypatch.setattr(library, "find_spec", lambda name: name if name in found else None)
    return found


@pytest.mark.parametrize(
    ("over", "address"),
    [
        ("ray", ""),
        ("ray://head", "ray://head:10001"),
        ("ray://10.0.0.1:20001", "ray://10.0.0.1:20001"),
        ("ray://[::1]:5", "ray://[::1]:5"),
    ],
)
def test_addresses(over: str, address: str, installed: set[str]) -> None:
    assert library.checked_address(over) == address


@pytest.mark.parametrize("over", ["", "dask", "ray:", "ray://", "http://head", "ray://head:x", "ray://head/path"])
def test_what_is_no_address(over: str, installed: set[str]) -> None:
    with pytest.raises(UsageError, match="is not the address of a cluster"):
        library.checked_address(over)


def test_without_ray_the_command_to_install_it_is_told(installed: set[str]) -> None:
    installed.discard("grpc")
    assert library.checked_address("ray") == ""
    with pytest.raises(UsageError) as told:
        library.checked_address("ray://head")
    assert told.value.hint == f"{sys.executable} -m pip install 'ray[client]>=2.50,<3'"
    installed.clear()
    with pytest.raises(UsageError, match="--over needs Ray, which is not installed") as told:
        library.checked_address("ray")
    assert told.value.hint == f"{sys.executable} -m pip install 'ray>=2.50,<3'"


def test_workers_are_not_for_nodes() -> None:
    with pytest.raises(UsageError, match="--over and --rpc cannot be combined"):
        check_over("ray", (), ("a:1",))
