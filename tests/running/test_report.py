"""`bayesfed report`: one page from folders of results. Its text here; in a browser in
`test_report_browser`.
"""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.cli.main import main
from bayesfed.errors import ArgumentError
from bayesfed.running import report, scoring
from bayesfed.running.folders import Folder
from bayesfed.running.reporting.clients import client_table
from bayesfed.running.reporting.supports import picture

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Texts by tag; every tag is closed, and nothing is loaded from anywhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.addresses, self.images = [], {}, [], 0
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert not [name for name in values if name.startswith("on")]
        self.addresses += [values[name] for name in ("src", "href") if name in values]
        self.images += tag == "img"
        self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data


@pytest.fixture(scope="module")
def saved(tmp_path_factory, digits, clients):
    """Two folders: a sparse posterior with two seeds, and a plain method whose name and clients are
    markup.
    """
    out, (train, test) = tmp_path_factory.mktemp("results"), digits
    net, work = bf.mlp([64, 6, 10], bf.Key(0, "net")), bf.Training(steps=2)
    sparse = bf.d_turbo_vbi(
        bf.declare(net, likelihood=bf.Categorical()), observations=len(train), training=work
    )
    for seed in (0, 1):
        scores = scoring(test, bf.Categorical(), draws=2, seed=0)
        bf.run(
            sparse, clients, rounds=3, test=test, seed=seed, callbacks=[scores], progress=False
        ).save(out / "sparse", test=test[:20])
    odd = {f"<i>{name}</i>": rows for name, rows in clients.items()}
    plain = bf.run(
        bf.fed_avg(net, training=work),
        odd,
        rounds=2,
        test=test,
        sampler=bf.fraction(0.5),
        progress=False,
    )
    own = [
        "client,rows,rounds,accuracy",
        *(f"{name},9,2,0.875" for name in plain.history[0].clients),
    ]
    (plain.save(out / "<script>alert(1)") / "clients.csv").write_text("\n".join(own))
    return out


def test_the_page_has_everything_and_loads_nothing(saved, tmp_path):
    path = report([saved / "sparse", saved / "<script>alert(1)"], tmp_path / "sub" / "page.html")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.texts["h2"] == [
        "Health",
        "Summary",
        "Learning curves",
        "Supports",
        "Clients",
        "Settings",
        "Versions",
        "To cite",
    ]
    assert page.texts["h1"] == ["sparse, <script>alert(1)"]
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text
    # The curves, and two layers with a support.
    assert page.images == 3
    for words in (
        "train.local.local.objective.declared.likelihood",
        "TurboStep",
        "Xia",
        "McMahan",
        torch.__version__,
        "± ",
        "87.50",
    ):
        assert words in text, words
    assert "<i>" not in text.replace("&lt;i&gt;", "")
    accuracy = (
        Folder(saved / "sparse").metrics(0)["accuracy"],
        Folder(saved / "sparse").metrics(1)["accuracy"],
    )
    assert f"{50 * sum(accuracy):.2f} ± " in text


def test_the_command_writes_beside_what_it_read(saved, capsys):
    assert main(["report", str(saved / "sparse")]) == 0
    assert capsys.readouterr().out.strip() == str(saved / "sparse" / "report.html")
    assert (saved / "sparse" / "report.html").stat().st_size > 20_000
    assert main(["report", str(saved / "sparse"), str(saved / "sparse")]) == 2
    assert "report: expected folders of different names" in capsys.readouterr().err
    assert main(["report", str(saved)]) == 2
    assert "expected a folder of results" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="folders of different names"):
        report([], saved / "none.html")
    (saved / "begun").mkdir()
    (saved / "begun" / "versions.json").write_text("[]")
    with pytest.raises(
        ArgumentError, match=r"report: expected a finished seed of each, found none of \['begun'\]"
    ):
        report(saved / "begun", saved / "none.html")


def test_clients_are_summed_over_rounds(saved):
    folder = Folder(saved / "<script>alert(1)")
    history = folder.history(0)
    headings, rows = client_table(folder, [history])
    assert headings == [
        "client",
        "rows",
        "rounds",
        "left out",
        "MB down",
        "MB up",
        "clock s",
        "own accuracy %",
    ]
    assert len(rows) == len({row.client for record in history for row in record.rows})
    sent = sum(row.bits for record in history for row in record.rows if row.direction == "up") / 8e6
    assert sum(float(row[5]) for row in rows) == pytest.approx(sent, abs=0.0005 * len(rows))
    assert {row[-1] for row in rows if row[0] in history[0].clients} == {"87.50"}
    assert sum(int(row[2]) for row in rows) == sum(len(record.clients) for record in history)


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "metrics.json").write_text("{}")
    (tmp_path / "versions.json").write_text("[]")
    (tmp_path / "seed-0" / "clients.csv").write_text("client,accuracy\na,high")
    with pytest.raises(
        ArgumentError, match=r"clients\.csv: expected scores of clients, found ValueError.*'high'"
    ):
        client_table(Folder(tmp_path), [[]])
    (tmp_path / "seed-0" / "clients.csv").unlink()
    (tmp_path / "seed-0" / "rounds.jsonl").write_text("")
    (tmp_path / "seed-0" / "metrics.json").write_text("{")
    with pytest.raises(
        ArgumentError, match="report: expected folders whose files are whole, found JSONDecodeError"
    ):
        report(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_picture_is_the_matrix():
    import matplotlib
    from matplotlib.image import imread

    def pixels(shares):
        data = base64.b64decode(picture(shares).removeprefix("data:image/png;base64,"))
        return imread(io.BytesIO(data), format="png")

    shares = np.linspace(0, 1, 12).reshape(3, 4)
    colours = matplotlib.colormaps["viridis"]
    assert np.allclose(pixels(shares), colours(shares), atol=1 / 255)
    # Too large: means over blocks.
    large = np.zeros((1024, 300))
    large[:512] = 1
    found = pixels(large)
    assert found.shape == (256, 256, 4)
    assert np.allclose(found[:128], colours(1.0), atol=1 / 255)
    assert np.allclose(found[128:], colours(0.0), atol=1 / 255)


def test_a_page_of_runs_that_measured_nothing_has_no_curves(digits, clients, tmp_path):
    net, work = bf.mlp([64, 6, 10], bf.Key(0, "net")), bf.Training(steps=1)
    bf.run(bf.fed_avg(net, training=work), clients, rounds=1, progress=False).save(tmp_path / "a")
    text = report(tmp_path / "a", tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Learning curves" not in Page(text).texts["h2"]
