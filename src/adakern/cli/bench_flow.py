"""`adakern bench flow`: gradient flow with weight decay, against closed forms, wide networks, certificates and other ways."""

from __future__ import annotations

from adakern.cli import options, sheets

EXAMPLE = "adakern bench flow --quick --only one-point"


def run(
    quick: options.Quick = False,
    only: options.Only = None,
    setting: options.Setting = "",
    width: options.Width = None,
    length: options.Length = None,
    replicas: options.Replicas = None,
    cap: options.Cap = 120.0,
    runs: options.Runs = None,
    draw: options.Draw = False,
    markdown: options.Markdown = None,
    numbers: options.Numbers = None,
    picture: options.Picture = None,
    as_json: options.Json = False,
) -> None:
    """Check where gradient flow with weight decay ends, and how it gets there; networks at full size want a GPU."""
    from adakern.benchmarks import flow, flow_picture
    from adakern.benchmarks.flow_rows import Options

    book = sheets.row_book("adakern bench flow", "Gradient flow with weight decay", flow.CASES, flow_picture.draw)
    asked = sheets.Request(quick, only, markdown, numbers, picture, as_json)
    sheets.run_book(book, asked, Options(quick, width, length or None, replicas, cap, runs), setting, draw)
