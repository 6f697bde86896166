"""Styles and scripts that pages carry inside."""

from __future__ import annotations

from pathlib import Path


def read_asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
