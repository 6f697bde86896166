"""`lipschitz-rnn explore`: a page in the browser where the recurrence runs, with sliders."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.parsing import require_writable
from lipschitz_rnn.commands.progress import spinner
from lipschitz_rnn.commands.threads import with_threads

NAME = "explorer.html"


@with_threads
@guarded
@with_imports
def explore(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="Run folder, .safetensors model, or name of a pretrained network to show. Default: the built-in ones.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="The .html file to write; replaced if it exists."),
    ] = Path(NAME),
    no_open: Annotated[bool, typer.Option("--no-open", help="Write the file and do not open a browser.")] = False,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="K", help="Network of this seed. Default: the first.", show_default=False),
    ] = None,
    layer: Annotated[int, typer.Option(help="Layer to show, from 0, of a network that has several.")] = 0,
    time_limit: Annotated[float, typer.Option(help="Seconds to search for a certificate of your network.")] = 20.0,
) -> None:
    """Write one HTML file to play with a Lipschitz RNN, and open it in the browser.

    It has sliders for β, γ, α, step, integrator, nonlinearity and size; phase portrait, eigenvalues, two trajectories
    beside their certified rate, the paper's pendulum, and a network that reads digits under noise and attack. The file
    needs no network connection and no installation: it can be mailed or put on a web site.

    [bold]Examples[/]

      lipschitz-rnn explore
      lipschitz-rnn explore runs/digits-lipschitz-n64 -o mine.html --no-open
    """
    from lipschitz_rnn.commands.model_files import require_whole
    from lipschitz_rnn.explorer import build_page, open_networks
    from lipschitz_rnn.storage import atomic_write

    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"the output is {str(out)!r}; its name must end in .html")
    if not time_limit >= 0:
        raise ValueError(f"--time-limit is {time_limit}; give the seconds of the search, at least 0")
    if source is None:
        for flag, given in (("--seed", seed is not None), ("--layer", layer != 0)):
            if given:
                raise ValueError(f"{flag} is for a network of your own; name its run folder or file")
    else:
        require_whole(source)
    require_writable(out)
    with spinner("writing the page"):
        own = [] if source is None else open_networks(source, seed=seed, layer=layer, time_limit=time_limit)
        page = build_page(own).encode()
        atomic_write(out, page)
    typer.echo(f"wrote {out} ({len(page) / 1024:,.0f} KB)")
    if not no_open and not webbrowser.open(out.resolve().as_uri()):
        typer.echo("no browser was found here; open the file in one")
