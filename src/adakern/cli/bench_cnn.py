"""`adakern bench cnn`: convolutional networks against networks of finite width, and what they learn."""

from __future__ import annotations

from adakern.cli import options, sheets

EXAMPLE = "adakern bench cnn --quick --only lazy"


def run(
    quick: options.Quick = False,
    only: options.Only = None,
    setting: options.Setting = "",
    width: options.Width = None,
    length: options.Length = None,
    replicas: options.Replicas = None,
    runs: options.Runs = None,
    draw: options.Draw = False,
    markdown: options.Markdown = None,
    numbers: options.Numbers = None,
    picture: options.Picture = None,
    as_json: options.Json = False,
) -> None:
    """Check convolutional networks against networks of finite width and the published losses; full size wants a GPU."""
    from adakern.benchmarks import cnn, cnn_picture
    from adakern.benchmarks.flow_rows import Options

    book = sheets.row_book("adakern bench cnn", "Convolutional networks", cnn.CASES, cnn_picture.draw)
    asked = sheets.Request(quick, only, markdown, numbers, picture, as_json)
    sheets.run_book(book, asked, Options(quick, width, length or None, replicas, runs=runs), setting, draw)
