"""A user's own data: arrays, tables and pictures, and what a partition gave whom."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

import bayesfed as bf
from bayesfed.data import concatenated
from bayesfed.errors import ArgumentError, DataError, KeywordError, MissingExtraError


def write(path, text):
    path.write_text(text)
    return path


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def picture(path, array, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array), mode).save(path) if mode is None else Image.fromarray(
        np.asarray(array)
    ).convert(mode).save(path)
    return path


# Arrays


def test_npz_keeps_numbers_and_names_classes(tmp_path):
    values = np.arange(12.0).reshape(3, 2, 2)
    data = bf.data.from_npz(
        npz(tmp_path / "a.npz", inputs=values, targets=np.array(["cat", "ant", "cat"]))
    )
    assert torch.equal(data.inputs, torch.from_numpy(values).float())
    assert (data.targets.tolist(), data.classes) == ([1, 0, 1], ("ant", "cat"))
    assert data[:1].classes == data.to("cpu").classes == ("ant", "cat")
    again = bf.data.from_npz(
        npz(tmp_path / "b.npz", x=values, y=np.array([-1, 10, 9])), inputs="x", targets="y"
    )
    assert (again.targets.tolist(), again.classes) == ([0, 2, 1], ("-1", "9", "10"))


def test_npz_bytes_are_pixels_and_channels_move(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    path = npz(tmp_path / "a.npz", inputs=pixels, targets=np.array([0, 1]))
    data = bf.data.from_npz(path, channels_last=True)
    assert data.inputs.shape == (2, 3, 2, 2)
    torch.testing.assert_close(
        data.inputs[1, 2, 0, 1], torch.tensor(pixels[1, 0, 1, 2] / 255, dtype=torch.float32)
    )
    assert torch.equal(bf.data.from_npz(path, scale=1.0).inputs, torch.from_numpy(pixels).float())


def test_npz_classes_of_a_training_set_and_regression(tmp_path):
    path = npz(tmp_path / "a.npz", inputs=np.zeros((2, 1)), targets=np.array(["b", "c"]))
    assert bf.data.from_npz(path, classes=("a", "b", "c")).targets.tolist() == [1, 2]
    with pytest.raises(
        DataError,
        match=re.escape("targets, row 1: expected a label among a, b, bc, found 'c'; try "),
    ):
        bf.data.from_npz(path, classes=("a", "b", "bc"))
    data = bf.data.from_npz(
        npz(tmp_path / "r.npz", inputs=np.zeros((2, 1)), targets=np.array([0.5, 2])),
        regression=True,
    )
    assert (data.targets.tolist(), data.classes) == ([0.5, 2.0], ())


def test_nothing_is_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("exploded").mkdir, ())

    path = npz(
        tmp_path / "a.npz", inputs=np.zeros((1, 1)), targets=np.array([Bomb()], dtype=object)
    )
    with pytest.raises(
        DataError, match="expected arrays of numbers or texts, found Object arrays cannot be loaded"
    ):
        bf.data.from_npz(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        (
            {"input": [[1]], "targets": [0]},
            {},
            "an array 'inputs', found input, targets; try 'input'",
        ),
        (
            {"inputs": np.zeros((0, 2)), "targets": np.zeros(0, int)},
            {},
            r"at least one, found shapes \(0, 2\) and \(0,\)",
        ),
        ({"inputs": [[1], [2]], "targets": [0]}, {}, "as many rows"),
        ({"inputs": [["a"]], "targets": [0]}, {}, "an array of numbers"),
        ({"inputs": [[np.nan]], "targets": [0]}, {}, "NaN or Inf in 1 row, first 0"),
        (
            {"inputs": [[1]], "targets": [0.5]},
            {},
            "integers or texts as labels, found float64; try regression=True",
        ),
        ({"inputs": [[1]], "targets": [[0, 1]]}, {}, "one-hot"),
        ({"inputs": [[1]], "targets": ["a"]}, {"regression": True}, "an array of numbers"),
        (
            {"inputs": [[1]], "targets": ["  "]},
            {},
            "targets, row 0: expected a label, an integer or a text, found none",
        ),
        (
            {"inputs": [[1]], "targets": [0]},
            {"channels_last": True},
            r"\(N, rows, columns, channels\), found shape \(1, 1\)",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_bad_arrays_are_refused(arrays, options, words, tmp_path):
    with pytest.raises(DataError, match=words):
        bf.data.from_npz(
            npz(tmp_path / "a.npz", **{name: np.array(array) for name, array in arrays.items()}),
            **options,
        )


def test_what_is_no_npz_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    for path in (tmp_path / "none.npz", tmp_path / "a.npy", write(tmp_path / "b.npz", "text")):
        with pytest.raises(DataError, match=r"expected a readable npz file.*try np\.savez"):
            bf.data.from_npz(path)


# Tables


def test_csv_of_other_countries(tmp_path):
    path = write(tmp_path / "a.csv", "x;y\n1.234,5;-0,25\n7;1.000\n")
    data = bf.from_csv(path, label="y", regression=True, delimiter=";", decimal=",", thousands=".")
    assert data.inputs.tolist() == [[1234.5], [7.0]]
    assert data.targets.tolist() == [-0.25, 1000.0]
    # A point may stand between thousands, so it is no number where a comma is the decimal mark.
    for column in ("x", "y"):
        with pytest.raises(DataError, match=rf"column '{column}': expected a finite number"):
            bf.from_csv(
                write(tmp_path / "b.csv", f"x;y\n{'1.234;1' if column == 'x' else '1;1.234'}\n"),
                label="y",
                regression=True,
                delimiter=";",
                decimal=",",
            )


def test_csv_reads_columns_by_name(tmp_path):
    path = write(tmp_path / "a.csv", '\ufeffwidth,kind,"height, cm"\n1,b,2.5\n\n-3e1, a ,4\n')
    data = bf.from_csv(path, label="kind")
    assert (data.inputs.tolist(), data.targets.tolist(), data.classes) == (
        [[1.0, 2.5], [-30.0, 4.0]],
        [1, 0],
        ("a", "b"),
    )
    assert bf.from_csv(path, label="kind", columns=["height, cm", "width"]).inputs.tolist() == [
        [2.5, 1.0],
        [4.0, -30.0],
    ]
    turned = bf.from_csv(path, label="width", columns=["height, cm"], regression=True)
    assert (turned.targets.tolist(), turned.classes) == ([1.0, -30.0], ())
    floats = bf.from_csv(write(tmp_path / "b.csv", "x;y\n0;3.0\n0;10\n"), label="y", delimiter=";")
    assert (floats.targets.tolist(), floats.classes) == ([0, 1], ("3", "10"))


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "a first line with the columns' names, found nothing"),
        ("x,y\n", {}, "at least one row, found no rows"),
        (
            "x,label\n1,2\n",
            {"label": "lable"},
            "line 1: expected a column 'lable', found 2 others; try 'label'",
        ),
        (
            "x,y\n1,2\n",
            {"columns": ["z"]},
            "expected a column 'z', found 2 others; try one of 'x', 'y'",
        ),
        ("x,x,y\n1,2,3\n", {}, "'x' twice"),
        ("x,y\n1,a\nred,b\n", {}, "line 3, column 'x': expected a finite number, found 'red'"),
        ("x,y\n1,a\n,b\n", {}, "line 3, column 'x': expected a finite number, found ''"),
        ("x,y\nnan,a\n", {}, "line 2, column 'x': expected a finite number, found 'nan'"),
        ("x,y\n1e39,a\n", {}, "found '1e39'"),
        ("x,y\n1,a\n1,a,2\n", {}, "line 3: expected 2 cells, as in the first line, found 3"),
        (
            "x,y\n1,a\n2, \n",
            {},
            "line 3, column 'y': expected a label, an integer or a text, found none",
        ),
        ("x,y\n1,0.5\n", {}, "line 2, column 'y': .* found '0.5'; try regression=True"),
        (
            "x,y\n1,a\n",
            {"regression": True},
            "line 2, column 'y': expected a finite number, found 'a'",
        ),
        (
            "x,y\n1,a\n",
            {"classes": ("b",)},
            "line 2, column 'y': expected a label among b, found 'a'",
        ),
        ("y\n1\n", {}, "columns of inputs beside the label, found none"),
        ('x,y\n"1,a\n', {}, "a readable table in utf-8"),
    ],
    ids=lambda value: "",
)
def test_bad_tables_are_refused(text, options, words, tmp_path):
    with pytest.raises(DataError, match=words):
        bf.from_csv(write(tmp_path / "a.csv", text), **{"label": "y", **options})


def test_missing_and_misread_tables_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes("x,y\n1,\xe9\n".encode("latin-1"))
    with pytest.raises(DataError, match="a readable table in utf-8"):
        bf.from_csv(tmp_path / "a.csv", label="y")
    assert bf.from_csv(tmp_path / "a.csv", label="y", encoding="latin-1").classes == ("é",)
    with pytest.raises(DataError, match="expected a file, found none of this name; try 'a.csv'"):
        bf.from_csv(tmp_path / "b.csv", label="y")
    with pytest.raises(DataError, match="found none of this name; try a path that begins in"):
        bf.from_csv(tmp_path / "none" / "b.csv", label="y")
    with pytest.raises(KeywordError, match="found clients; try client"):
        bf.from_csv(tmp_path / "a.csv", label="y", clients="x")


# Pictures


def test_image_folder_reads_what_was_written(tmp_path):
    random = np.random.default_rng(0)
    cats, dogs = (
        random.integers(0, 256, (2, 4, 5, 3), np.uint8),
        random.integers(0, 256, (1, 4, 5), np.uint8),
    )
    picture(tmp_path / "dog" / "a.png", dogs[0])
    picture(tmp_path / "cat" / "deep" / "b.png", cats[1])
    picture(tmp_path / "cat" / "a.PNG", cats[0])
    write(tmp_path / "cat" / ".DS_Store", "")
    write(tmp_path / "README.txt", "")
    data = bf.data.from_image_folder(tmp_path)
    assert (data.inputs.shape, data.targets.tolist(), data.classes) == (
        (3, 3, 4, 5),
        [0, 0, 1],
        ("cat", "dog"),
    )
    torch.testing.assert_close(data.inputs[:2], torch.from_numpy(cats).permute(0, 3, 1, 2) / 255)
    torch.testing.assert_close(data.inputs[2], torch.from_numpy(dogs[0]).expand(3, 4, 5) / 255)
    grey = bf.data.from_image_folder(tmp_path, size=(2, 3), colour="grey", classes=("dog", "cat"))
    assert (grey.inputs.shape, grey.targets.tolist()) == ((3, 2, 3), [1, 1, 0])


def test_pictures_are_turned_as_cameras_say(tmp_path):
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    marks = image.getexif()
    marks[0x0112] = 6  # a quarter turn
    (tmp_path / "a").mkdir()
    image.save(tmp_path / "a" / "a.png", exif=marks)
    assert (
        bf.data.from_image_folder(tmp_path, colour="grey").inputs[0] * 255
    ).round().tolist() == [
        [3, 0],
        [4, 1],
        [5, 2],
    ]


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="expected a folder, found none"):
        bf.data.from_image_folder(tmp_path / "no")
    with pytest.raises(DataError, match="a folder for each class"):
        bf.data.from_image_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="at least one picture"):
        bf.data.from_image_folder(tmp_path)
    picture(tmp_path / "a" / "a.png", np.zeros((2, 3), np.uint8))
    loose = picture(tmp_path / "b.png", np.zeros((2, 3), np.uint8))
    with pytest.raises(
        DataError, match=r"b\.png: expected pictures in a folder that names their class"
    ):
        bf.data.from_image_folder(tmp_path)
    loose.unlink()
    picture(tmp_path / "b" / "c.png", np.zeros((2, 2), np.uint8))
    with pytest.raises(
        DataError,
        match=r"c\.png: expected the shape of .*a\.png, \(2, 3\), found \(2, 2\); try resizing",
    ):
        bf.data.from_image_folder(tmp_path, colour="grey")
    assert bf.data.from_image_folder(tmp_path, size=(2, 2)).inputs.shape == (2, 3, 2, 2)
    with pytest.raises(DataError, match=r"c\.png: expected a label among a, found 'b'"):
        bf.data.from_image_folder(tmp_path, size=(2, 2), classes=["a"])
    picture(tmp_path / "b" / "d.png", np.full((2, 2), 40000, np.uint16))
    with pytest.raises(
        DataError,
        match=r"d\.png: expected a picture with a byte a colour, found Pillow's mode I;16",
    ):
        bf.data.from_image_folder(tmp_path, size=(2, 2))
    write(tmp_path / "b" / "d.png", "no picture")
    with pytest.raises(DataError, match=r"d\.png: expected a picture, found cannot identify"):
        bf.data.from_image_folder(tmp_path, size=(2, 2))
    for options in ({"size": (0, 3)}, {"size": (3,)}, {"colour": "red"}):
        with pytest.raises(ArgumentError, match=f"from_image_folder, {next(iter(options))}"):
            bf.data.from_image_folder(tmp_path, **options)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(
        MissingExtraError, match=r"Pillow is not installed; try: pip install 'bayesfed\[images\]'"
    ):
        bf.data.from_image_folder(tmp_path)


# What it is for


def clients():
    data = bf.Dataset(torch.zeros(60, 1), torch.arange(60) % 3, ("ant", "bee", "cow"))
    parts = [torch.arange(0, 60, 3), torch.arange(1, 31), torch.empty(0, dtype=torch.int64)]
    with pytest.warns(UserWarning, match="row 3 is at 'client-000' and .* and 9 more"):
        return bf.federate(data, parts)


def test_rows_of_two_clients_are_told_and_disjoint_ones_are_not():
    data = bf.Dataset(torch.zeros(6, 1), torch.zeros(6))
    words = "federate: row 2 is at 'a' and at 'c'; such a row counts once for each"
    masks = {"a": [0, 2], "b": [1], "c": torch.arange(6) == 2}
    with pytest.warns(UserWarning, match=words) as caught:
        bf.federate(data, masks)
    assert caught[0].filename == __file__
    assert [len(rows) for rows in bf.federate(data, [[0, 1], [], [5, 4]]).values()] == [2, 0, 2]


def test_more_clients_than_rows_are_told_since_the_two_may_be_swapped():
    words = r"of 300 clients 290 get none of 10 rows; try iid\(rows=300, clients=10"
    with pytest.warns(UserWarning, match=words) as caught:
        assert len(bf.iid(10, 300, bf.Key(0))) == 300
    assert caught[0].filename == __file__
    assert len(bf.iid(300, 300, bf.Key(0))) == 300


def test_the_label_is_no_name_of_a_client(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("age,ward,los\n50,a,1\n60,b,2\n")
    with pytest.raises(DataError, match="another column than the label's, found 'los' for both"):
        bf.data.from_csv(path, label="los", client="los")
    assert list(bf.data.from_csv(path, label="los", client="ward")) == ["a", "b"]


def test_names_must_fit_their_classes():
    with pytest.raises(DataError, match="labels from 0 to 1, as there are names, found 2"):
        bf.Dataset(torch.zeros(3, 1), torch.arange(3), ("a", "b"))
    with pytest.raises(DataError, match="as there are names, found numbers with fractions"):
        bf.Dataset(torch.zeros(3, 1), torch.zeros(3), ("a", "b"))
    parts = list(clients().values())
    assert concatenated(parts).classes == ("ant", "bee", "cow")
    with pytest.raises(DataError, match="sets with the same classes"):
        concatenated([parts[0], bf.Dataset(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))])


def test_a_partition_as_a_table():
    assert bf.inspect.partition_table(clients()).splitlines() == [
        "client      ant  bee  cow  rows",
        "----------  ---  ---  ---  ----",
        "client-000   20    0    0    20",
        "client-001   10   10   10    30",
        "client-002    0    0    0     0",
        "all          30   10   10    50",
    ]
    train, _ = bf.digits()
    assert bf.inspect.partition_table({"all of it": train}).split()[:2] == ["client", "0"]


def test_a_partition_as_a_picture():
    axes = bf.inspect.plot_partition(clients())
    assert axes.images[0].get_array().tolist() == [[20, 0, 0], [10, 10, 10], [0, 0, 0]]
    assert [text.get_text() for text in axes.texts] == ["20", "10", "10", "10"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "client-000 (20)",
        "client-001 (30)",
        "client-002 (0)",
    ]
    many = bf.Dataset(torch.zeros(200, 1), torch.arange(200) % 50)
    axes = bf.inspect.plot_partition(bf.federate(many, bf.iid(200, 100, bf.Key(0, "many"))))
    assert (axes.images[0].get_array().shape, len(axes.texts)) == ((100, 50), 0)


@pytest.mark.parametrize(
    "report", [bf.inspect.partition_table, bf.inspect.plot_partition], ids=["table", "picture"]
)
def test_what_has_no_classes_has_no_report(report):
    with pytest.raises(ArgumentError, match="at least one client"):
        report({})
    with pytest.raises(ArgumentError, match="a: expected class labels"):
        report({"a": bf.Dataset(torch.zeros(1, 1), torch.zeros(1))})
    named = clients()["client-000"]
    with pytest.raises(ArgumentError, match="the same classes"):
        report({"a": named, "b": bf.Dataset(named.inputs, named.targets)})


def test_own_rows_train(tmp_path, digits):
    train, test = digits
    path = npz(
        tmp_path / "own.npz",
        inputs=(train.inputs * 16).numpy().astype(np.uint8),
        targets=train.targets.numpy(),
    )
    own = bf.data.from_npz(path, scale=1 / 16)
    assert torch.equal(own.inputs, train.inputs)
    parts = bf.federate(own, bf.dirichlet(own.targets, 4, 0.5, bf.Key(0, "partition")))
    result = bf.run(
        bf.fed_avg(
            bf.mlp([64, 16, 10], bf.Key(0, "net")),
            training=bf.Training(steps=20, optimiser=bf.Sgd(0.2)),
        ),
        parts,
        rounds=3,
        test=test,
    )
    assert result.final("accuracy") > 0.3
