"""Tests drive the real program: ``BELLJAR_BIN`` says where it is."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import belljar


def pytest_sessionstart() -> None:
    if not os.environ.get("BELLJAR_BIN"):
        pytest.exit("BELLJAR_BIN has to name the program: BELLJAR_BIN=target/debug/belljar", returncode=2)
    # What a person has set up is not what is tested.
    for name in ("BELLJAR_SERVER", "BELLJAR_API_KEY", "BELLJAR_CONFIG"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def client() -> Iterator[belljar.Client]:
    with belljar.Client() as client:
        yield client


@pytest.fixture
def box(client: belljar.Client) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(client=client) as box:
        yield box
