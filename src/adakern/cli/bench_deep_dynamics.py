"""`adakern bench deep-dynamics`: training over time of deep networks, against networks of finite width and where it ends; its noise and its cost."""

from __future__ import annotations

from adakern.cli import options, sheets

EXAMPLE = "adakern bench deep-dynamics --quick --only noise"


def run(
    quick: options.Quick = False,
    only: options.Only = None,
    setting: options.Setting = "",
    width: options.Width = None,
    replicas: options.Replicas = None,
    runs: options.Runs = None,
    draw: options.Draw = False,
    markdown: options.Markdown = None,
    numbers: options.Numbers = None,
    picture: options.Picture = None,
    as_json: options.Json = False,
) -> None:
    """Check the training dynamics of deep networks at infinite width; networks at full size want a GPU."""
    from adakern.benchmarks import deep_dynamics, deep_picture
    from adakern.benchmarks.flow_rows import Options

    book = sheets.row_book(
        "adakern bench deep-dynamics", "Training dynamics of deep networks", deep_dynamics.CASES, deep_picture.draw
    )
    asked = sheets.Request(quick, only, markdown, numbers, picture, as_json)
    sheets.run_book(book, asked, Options(quick, width, None, replicas, runs=runs), setting, draw)
