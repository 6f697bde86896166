"""A cache and data folder of its own for every test, so that nothing of the user's is read or written."""

import os
from pathlib import Path

import pytest

REAL_DATA = os.environ.get("LIPSCHITZ_RNN_DATA")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of this test; no data folder is set and no proxy stands before 127.0.0.1."""
    base = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    monkeypatch.delenv("LIPSCHITZ_RNN_DATA", raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return base / "lipschitz-rnn"


@pytest.fixture(scope="session")
def real_data() -> str:
    """The folder with the real data sets; tests that need it are skipped where there is none."""
    if not REAL_DATA:
        pytest.skip("LIPSCHITZ_RNN_DATA is not set: the counts of the real data sets are not checked")
    return REAL_DATA
