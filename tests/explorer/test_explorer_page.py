"""The page as a file: small, complete in itself, and the same numbers as the networks in it."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.explorer import build_page, open_networks
from lipschitz_rnn.explorer.records import LARGEST, lipschitz_layer, network_record
from lipschitz_rnn.explorer.shipped import FOLDER
from lipschitz_rnn.stability import certify
from lipschitz_rnn.training.runs import load_run
from lipschitz_rnn.units.lipschitz import LipschitzRNN

LARGEST_PAGE = 400 * 1024


class Links(HTMLParser):
    """All addresses that a page could load something from, and all identifiers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.identifiers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "poster", "formaction"):
                self.addresses.append(value or "")
            if name == "id":
                self.identifiers.append(value or "")


def numbers_in(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def decoded(packed: dict[str, Any]) -> np.ndarray:
    kind = np.dtype(packed["type"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(packed["data"]), kind).reshape(packed["shape"])


def test_the_page_is_small_and_asks_for_nothing(page_text: str) -> None:
    assert len(page_text.encode()) <= LARGEST_PAGE
    assert "{{" not in page_text
    assert not re.search(r"https?:|//cdn|\bimport\s*\(|\bfetch\s*\(|XMLHttpRequest|WebSocket|@import|url\(", page_text)
    links = Links(page_text)
    assert set(links.addresses) == {"data:,", "#views"}
    assert len(links.identifiers) == len(set(links.identifiers))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page_text)
    assert policy
    assert "default-src 'none'" in policy[1]


def test_every_identifier_that_a_script_uses_is_there(page_text: str) -> None:
    used = set(re.findall(r'(?:byId|new Plot)\("([\w-]+)"', page_text))
    assert used
    assert used <= set(Links(page_text).identifiers)


def test_the_digit_networks_are_those_of_the_files(page_text: str) -> None:
    records = {record["name"]: record for record in numbers_in(page_text)["networks"]}
    free = load_run(FOLDER / "digits-free.safetensors").networks[0]
    record = records["Digits, free"]
    assert np.array_equal(decoded(record["M_A"]), free.unit.cell().hidden.M_A.detach().numpy())
    assert np.array_equal(decoded(record["head"]["weight"]), free.head.weight.detach().numpy())
    assert not record["certificate"]["holds"]
    assert len(record["images"]["examples"]) == 10


def test_the_certificate_in_the_page_is_a_proof(page_text: str) -> None:
    record = numbers_in(page_text)["networks"][1]
    contracting = load_run(FOLDER / "digits-contracting.safetensors").networks[0]
    stated = record["certificate"]
    assert stated["holds"]
    assert stated["rate"] >= contracting.unit.rate
    assert certify(contracting, rate=0.999 * stated["rate"], solver="structured").holds
    assert stated["factor"] == pytest.approx(np.exp(-stated["rate"] * contracting.unit.step_size), rel=1e-9)


def test_a_name_cannot_leave_its_script(tmp_path: Path) -> None:
    evil = '</script><script>alert("{{script}}")</script>'
    page = build_page([network_record(evil, LipschitzRNN(1, 2).cell())])
    assert evil not in page
    assert page.count("<script") == 2
    own = numbers_in(page)["networks"][0]
    assert own["name"] == evil
    assert own["own"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_numbers_keep_their_precision(dtype: torch.dtype) -> None:
    cell = LipschitzRNN(2, 3, beta=(0.6, 0.8), integrator="rk2", dtype=dtype).cell()
    record = network_record("mine", cell, time_limit=0.0)
    assert np.array_equal(decoded(record["M_W"]), cell.hidden.M_W.detach().double().numpy())
    assert record["settings"]["beta"] == (0.6, 0.8)
    assert record["settings"]["integrator"] == "midpoint"


def explore(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["explore", *arguments, "--no-open"])


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    """A run folder: its own network comes first, and reads the images of its task."""
    settings = ("digits", "--hidden-size", "5", "-e", "1", "--seeds", "3,4", "--device", "cpu")
    trained = CliRunner().invoke(app, ["train", *settings, "--out", str(tmp_path / "run")])
    assert trained.exit_code == 0, trained.output
    done = explore(str(tmp_path / "run"), "--seed", "4", "-o", str(tmp_path / "mine.html"))
    assert done.exit_code == 0, done.output
    own = numbers_in((tmp_path / "mine.html").read_text(encoding="utf-8"))["networks"][0]
    network = load_run(tmp_path / "run").networks[1]
    assert (own["name"], own["about"], own["size"]) == ("run", "seed 4", 5)
    assert np.array_equal(decoded(own["M_A"]), network.unit.cell().hidden.M_A.detach().numpy())
    assert own["images"]["side"] == 8


def test_a_pretrained_network_by_name() -> None:
    (record,) = open_networks(Path("ordered-mnist-64"), time_limit=0.0)
    assert record["size"] == 64
    assert record["images"]["side"] == 28


def test_wrong_use_is_explained(tmp_path: Path) -> None:
    (tmp_path / "text.csv").write_text("a,b\n")
    cases = {
        ("-o", str(tmp_path / "page.txt")): "must end in .html",
        ("-o", str(tmp_path / "no" / "page.html")): "there is no folder",
        ("--seed", "1"): "name its run folder",
        ("--layer", "1"): "name its run folder",
        (str(tmp_path / "nothing"),): "there is no",
        (str(tmp_path / "text.csv"),): "neither a run folder nor",
        ("ordered-mnist-64", "--seed", "99"): "has the seeds",
        ("ordered-mnist-64", "--layer", "1"): "has only layer 0",
        ("ordered-mnist-64", "--time-limit", "nan"): "at least 0",
    }
    for arguments, message in cases.items():
        done = explore(*arguments, *(() if "-o" in arguments else ("-o", str(tmp_path / "page.html"))))
        assert done.exit_code in (1, 2), arguments
        assert message in " ".join(done.output.split()), (arguments, done.output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.csv"]


def test_a_proof_about_another_map_is_not_shown() -> None:
    """A layer that splits its steps is certified for the parts; the page takes each step at once."""
    layer = LipschitzRNN(1, 2, stability="contracting", step_size=0.2)
    assert network_record("whole", layer.cell())["certificate"]["holds"]
    layer.max_step = 0.05
    assert "max_step" in network_record("split", layer.cell())["certificate"]["reason"]


def test_networks_that_cannot_be_shown() -> None:
    with pytest.raises(ValueError, match=f"at most {LARGEST}"):
        network_record("wide", LipschitzRNN(1, LARGEST + 1).cell())
    with pytest.raises(ValueError, match="its unit is LSTM"):
        lipschitz_layer(torch.nn.LSTM(1, 2), "run")
    broken = LipschitzRNN(1, 2)
    with torch.no_grad():
        broken.cell().weight_ih.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        network_record("broken", broken.cell())


def test_it_opens_in_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_text: str) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setattr("lipschitz_rnn.explorer.build_page", lambda own: page_text)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["explore"])
    assert done.exit_code == 0, done.output
    assert opened == [(tmp_path / "explorer.html").as_uri()]
    assert (tmp_path / "explorer.html").read_text(encoding="utf-8") == page_text
