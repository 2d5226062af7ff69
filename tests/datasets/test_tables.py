"""The user's own tables."""

from __future__ import annotations

import numpy as np
import pytest

from adakern.datasets import load_table
from adakern.errors import FileFormatError


def write(tmp_path, text, name="table.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def test_csv_takes_the_usual_target_column(tmp_path):
    for name in ("y", "target"):
        X, y = load_table(write(tmp_path, f"a,{name},b\n1,10,2.5\n-3,20,4e1\n"))
        assert X.tolist() == [[1.0, 2.5], [-3.0, 40.0]] and y.tolist() == [10.0, 20.0]
        assert X.dtype == y.dtype == np.float64


def test_csv_with_named_targets(tmp_path):
    path = write(tmp_path, "a,b,c\n1,2,3\n4,5,6\n")
    X, y = load_table(path, target="b")
    assert X.tolist() == [[1, 3], [4, 6]] and y.tolist() == [2, 5]
    X, y = load_table(path, target=["c", "a"])
    assert X.tolist() == [[2], [5]] and y.tolist() == [[3, 1], [6, 4]]
    assert load_table(path, target=["c"])[1].shape == (2, 1)


def test_csv_without_targets(tmp_path):
    X, y = load_table(write(tmp_path, "a,y,b\n1,,2\n4,,6\n"), target=False)
    assert X.tolist() == [[1, 2], [4, 6]] and y is None
    X, y = load_table(write(tmp_path, "a,b\n1,2\n"), target=False)
    assert X.tolist() == [[1, 2]] and y is None


def test_csv_labels_may_be_words(tmp_path):
    X, y = load_table(write(tmp_path, "a,y\n1,cat\n2,dog\n"))
    assert y.tolist() == ["cat", "dog"] and y.dtype.kind == "U" and X.tolist() == [[1], [2]]


def test_csv_from_a_spreadsheet(tmp_path):
    """A byte-order mark, quotes, blanks, Windows line ends, an empty last line; a suffix in capitals."""
    X, y = load_table(write(tmp_path, 'a , "b",y\r\n 1,"2", 3\r\n\r\n4,5,6\r\n\r\n', "T.CSV", "utf-8-sig"))
    assert X.tolist() == [[1, 2], [4, 5]] and y.tolist() == [3, 6]


def test_csv_columns_may_be_numbered(tmp_path):
    X, _ = load_table(write(tmp_path, "0,1\n5,6\n"), target=False)
    assert X.tolist() == [[5, 6]]


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("a,b\n1,2\n", None, "target must name the target column .* neither 'y' nor 'target'; .* are 'a', 'b'"),
        ("y,target,a\n1,2,3\n", None, "both 'y' and 'target'"),
        ("a,b\n1,2\n", "c", "target must name columns of .* 'a', 'b', but it is 'c'"),
        ("a,b\n1,2\n", ["a", "c"], "target must name columns of .*, but it is 'c'"),
        ("a,b\n1,2\n", [], "target must list one or more different names"),
        ("a,b\n1,2\n", ["a", "a"], "target must list one or more different names"),
        ("a,y\n1,2\nx,4\n", None, r"finite number in row 2 \(line 3\), column 'a', but it is 'x'"),
        ("a,b,y\n1,2,3\n\n1,,4\n", None, r"finite number in row 2 \(line 4\), column 'b', but it is missing"),
        ("a,y\nnan,2\n", None, r"finite number in row 1 \(line 2\), column 'a', but it is missing"),
        ("a,y\ninf,2\n", None, "column 'a', but it is 'inf'"),
        ("a,y\n1_0,2\n", None, "column 'a', but it is '1_0'"),
        ("a,y\n1,2\n2,2x\n", None, r"row 2 \(line 3\), column 'y', but it is '2x'"),
        ("a,y\n1,\n2,3\n", None, r"row 1 \(line 2\), column 'y', but it is missing"),
        ("a,y\n1,cat\n2,\n", None, r"must hold a target in row 2 \(line 3\), column 'y', but it is missing"),
        ("a,b,y\n1,2,3\n1,2\n", None, r"3 cells in every row like its header, but row 2 \(line 3\) has 2"),
        ("a,a,y\n1,2,3\n", None, "must name its columns differently, but 'a' stands there twice"),
        ("a,,y\n1,2,3\n", None, "must name every column in its first row"),
        ("y\n1\n", None, "must have at least one column besides the targets"),
        ("a,y\n", None, "must have at least one row of data"),
        ("0.5,1.5\n2,3\n", False, "must begin with a header row naming the columns"),
        ("a;y\n1;2\n", None, "must have its columns separated by commas"),
    ],
)
def test_bad_csv(tmp_path, text, target, message):
    with pytest.raises(ValueError, match=message):
        load_table(write(tmp_path, text), target=target)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_empty_csv(tmp_path, text):
    with pytest.raises(FileFormatError, match="table.csv is empty"):
        load_table(write(tmp_path, text))


def test_foreign_csv(tmp_path):
    with pytest.raises(FileFormatError, match="table.csv is no .csv file in UTF-8"):
        load_table(write(tmp_path, "größe,y\n1,2\n", encoding="latin1"))
    with pytest.raises(FileFormatError, match="table.csv is no .csv file in UTF-8"):
        load_table(write(tmp_path, 'a,y\n"1,2\n'))


@pytest.mark.parametrize("target", [True, 3, [1, 2], {"a"}])
def test_bad_target_type(tmp_path, target):
    with pytest.raises(TypeError, match="target must be a name, a list of names, None or False"):
        load_table(write(tmp_path, "a,y\n1,2\n"), target=target)


def save(tmp_path, **arrays):
    path = tmp_path / "table.npz"
    np.savez_compressed(path, **arrays)
    return path


def test_npz(tmp_path):
    X, y = load_table(save(tmp_path, X=np.arange(6).reshape(3, 2), y=np.array([1, 0, 1])))
    assert X.tolist() == [[0, 1], [2, 3], [4, 5]] and y.tolist() == [1, 0, 1]
    assert X.dtype == y.dtype == np.float64


def test_npz_without_targets(tmp_path):
    assert load_table(save(tmp_path, X=np.ones((3, 2))))[1] is None
    assert load_table(save(tmp_path, X=np.ones((3, 2)), y=np.ones(3)), target=False)[1] is None


def test_npz_with_images_named_targets_and_words(tmp_path):
    path = save(tmp_path, X=np.ones((2, 4, 4, 3)), labels=np.array(["cat", "dog"]), two=np.ones((2, 2)))
    X, y = load_table(path, target="labels")
    assert X.shape == (2, 4, 4, 3) and y.tolist() == ["cat", "dog"]
    assert load_table(path, target="two")[1].shape == (2, 2)


@pytest.mark.parametrize(
    ("arrays", "target", "message"),
    [
        ({"x": np.ones((3, 2))}, None, "must hold an array 'X', but it holds 'x'"),
        ({"X": np.ones(3)}, None, r"X in .*table.npz must be 2-D \(points, features\)"),
        ({"X": np.full((3, 2), np.nan)}, None, "X in .*table.npz must be finite"),
        ({"X": np.ones((3, 2)), "y": np.ones(2)}, None, "y in .*table.npz must have one row per point of X"),
        ({"X": np.ones((3, 2)), "y": np.array(["a", "b"])}, None, "y in .*table.npz must have one label per point"),
        ({"X": np.ones((3, 2))}, "labels", "target must name an array .*, but it is 'labels'"),
        ({"X": np.ones((3, 2))}, "X", "target must name an array .* other than 'X'"),
    ],
)
def test_bad_npz(tmp_path, arrays, target, message):
    with pytest.raises(ValueError, match=message):
        load_table(save(tmp_path, **arrays), target=target)


def test_npz_types(tmp_path):
    with pytest.raises(TypeError, match="X in .*table.npz must hold real numbers, but it holds strings"):
        load_table(save(tmp_path, X=np.array([["a"]])))
    with pytest.raises(TypeError, match="target must be the name of one array for a .npz file"):
        load_table(save(tmp_path, X=np.ones((3, 2))), target=["X", "y"])


def test_truncated_npz(tmp_path):
    path = save(tmp_path, X=np.random.default_rng(0).normal(size=(50, 20)))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:100] + b"\x00" * 50 + whole[150:], b"", b"a,y\n1,2\n"):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match="table.npz is truncated or no .npz file"):
            load_table(path)


def test_npz_with_objects_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="no .npz file of plain arrays: .*allow_pickle=False"):
        load_table(save(tmp_path, X=np.array([[1, None]], dtype=object)))


def test_npy_in_disguise(tmp_path):
    with (tmp_path / "table.npz").open("wb") as stream:
        np.save(stream, np.ones((3, 2)))
    with pytest.raises(FileFormatError, match="table.npz is no .npz file: it holds a single array"):
        load_table(tmp_path / "table.npz")


def test_bad_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match="path must name an existing file, but there is no '.*none.csv'"):
        load_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="path must name a .npz or a .csv file, but it is '.*table.xlsx'"):
        load_table(tmp_path / "table.xlsx")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match="path must name a file, but '.*folder.csv' is none"):
        load_table(str(tmp_path / "folder.csv"))
    with pytest.raises(TypeError, match="path must be a path to a .npz or .csv file, but it is 3"):
        load_table(3)
