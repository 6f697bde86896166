"""`lipschitz-rnn reproduce`: one subcommand per study, generated from the study."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lipschitz_rnn.commands import options
from lipschitz_rnn.commands.errors import RESUME, fail, guarded
from lipschitz_rnn.commands.help import TidyCommand, TidyGroup
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.parsing import given_options, parse_seeds, refuse_given, was_given
from lipschitz_rnn.commands.progress import watch_runs
from lipschitz_rnn.commands.reproduce_list import print_list
from lipschitz_rnn.commands.threads import choose_threads_for_runs, with_threads
from lipschitz_rnn.documents.numbers import show_duration, show_score, spread
from lipschitz_rnn.experiments.campaign import Campaign, Plan
from lipschitz_rnn.experiments.engines import Engine, make_engine
from lipschitz_rnn.experiments.engines.base import EngineName, refuse_cluster_options
from lipschitz_rnn.experiments.pages.sections import count_seeds
from lipschitz_rnn.experiments.reproduce import Outcome
from lipschitz_rnn.experiments.reproduce import reproduce as run_study
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.studies import STUDIES
from lipschitz_rnn.experiments.study import Study, matches, nearest
from lipschitz_rnn.training import RunError


class StudyGroup(TidyGroup):
    """Subcommands that are studies: a name that is none is answered with the list of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in self.commands or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        # Less alike than usual: the name of a task, such as permuted-mnist, leads to its study.
        close = get_close_matches(name.lower(), self.commands, n=1, cutoff=0.5)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        names = ", ".join(study for study in self.commands if study != "all")
        raise fail(
            f"there is no study {name!r}{hint}; the studies are {names}, or all for all of them; "
            "`lipschitz-rnn reproduce --list` shows their runs",
            2,
        )


reproduce = typer.Typer(
    cls=StudyGroup,
    invoke_without_command=True,
    help="Repeat the paper's studies and write tables and figures.",
)

# Options that only some studies have, by their names in `Study.options`; those in _SETTINGS are settings of the runs.
_SETTINGS = ("hidden_size", "learning_rate")
_OWN: dict[str, Any] = {
    "hidden_size": Annotated[
        int | None, typer.Option("--hidden-size", "-n", min=1, help="Hidden size N. Default: the paper's.")
    ],
    "learning_rate": Annotated[
        float | None, typer.Option("--learning-rate", "--lr", min=0.0, help="Learning rate of every run.")
    ],
    "at_once": Annotated[
        int | None,
        typer.Option(min=1, help="Most networks to train at once. Default: all values and seeds of a sweep."),
    ],
    "task": Annotated[
        str | None, typer.Option("--task", help="Train on this task instead of the paper's, e.g. permuted-mnist.")
    ],
    "target_loss": Annotated[
        float | None, typer.Option(min=0.0, help="Training loss to compare at. Default: the lowest that all reach.")
    ],
    "samples": Annotated[
        int | None, typer.Option(min=1, help="Samples to attack, or of the Hessian. Default: the study's.")
    ],
}
_QUICK = Annotated[bool, typer.Option("--quick", help="Run a small version that takes minutes on two CPU cores.")]
_ONLY_ALONE = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="NAME",
        help="Only runs with this name, these whole parts of it, or this pattern, e.g. '*noise*'; repeat for more.",
    ),
]
_COMMON: dict[str, tuple[Any, Any]] = {
    "resume": (options.Resume, False), "engine": (options.EngineChoice, "local"), "jobs": (options.Jobs, 1),
    "address": (options.Address, None), "gpus": (options.Gpus, None), "epochs": (options.Epochs, None),
    "precision": (options.Precision, None), "results": (options.Results, None), "commit": (options.Commit, None),
    "device": (options.Device, "auto"), "data_dir": (options.DataDir, None), "offline": (options.Offline, False),
    "dry_run": (options.DryRun, False), "as_json": (options.AsJson, False),
}  # fmt: skip


@reproduce.callback()
@guarded
def studies(
    context: typer.Context,
    listed: Annotated[
        bool, typer.Option("--list", help="List the studies: their runs, what is committed, and how long each takes.")
    ] = False,
    results: Annotated[
        Path, typer.Option("--results", metavar="FOLDER", help="With --list: the folder of JSON results.")
    ] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="With --list: print every run as JSON.")] = False,
) -> None:
    """Repeat the paper's studies and write tables and figures.

    [bold]Examples[/]

      lipschitz-rnn reproduce --list
      lipschitz-rnn reproduce mnist --quick -o runs/quick
      lipschitz-rnn reproduce all --device cuda --resume
    """
    study = context.invoked_subcommand
    if listed:
        if was_given(context, "results") and not results.is_dir():
            kind = "a file" if results.exists() else "missing"
            raise ValueError(f"--results is {results}, which is {kind}; name a folder of JSON results")
        print_list(results, as_json, [*STUDIES] if study in (None, "all") else [str(study)])
        raise typer.Exit  # with a study, too: who asks for a list does not want to train
    why = f"stands before the study, where it is for --list; write it after: lipschitz-rnn reproduce {study} …"
    refuse_given(context, ("results", "as_json"), why if study else "is for --list; add it, or name a study first")
    if study is None:
        typer.echo(context.get_help())


def _signature(study: Study | None) -> inspect.Signature:
    """The options of a study's command; without a study, those that all have in common."""
    own = () if study is None else study.options
    out = Path("runs" if study is None else f"runs/{study.name}")
    given: dict[str, tuple[Any, Any]] = {"out": (Annotated[Path, options.Out], out), "quick": (_QUICK, False)}
    given |= {"seeds": (options.TrainingSeeds, None)}
    given |= {"only": (_ONLY_ALONE if "task" in own else options.Only, None)}
    for name, text in {} if study is None else study.groups.items():
        given[name] = (Annotated[bool, typer.Option(f"--{name}", help=text)], False)
    given |= {name: (_OWN[name], None) for name in own} | _COMMON
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=usual, annotation=each) for name, (each, usual) in given.items()]
    )


def _command(name: str, study: Study | None, run: Callable[..., None], text: str) -> None:
    """Add a command with the options of its study."""
    run.__name__, run.__doc__ = name.replace("-", "_"), text
    run.__signature__ = _signature(study)  # type: ignore[attr-defined]
    reproduce.command(name=name, cls=TidyCommand)(guarded(interrupted=RESUME)(with_imports(with_threads(run))))


def _make(study: Study) -> None:
    def run(**given: Any) -> None:
        _report([(study, *_plan(study, given))], **given)

    example = f"[bold]Example[/]\n\n  lipschitz-rnn reproduce {study.name} --quick -o runs/quick"
    _command(study.name, study, run, f"{study.title}.\n\n{study.about}\n\n{example}")


def _run_all(only: list[str] | None, quick: bool, out: Path, **given: Any) -> None:
    chosen = []
    for study in STUDIES.values():
        groups = {} if quick else dict.fromkeys(study.groups, True)
        asked = {**given, **groups, "quick": quick, "out": out / study.name}
        campaign, plans = _plan(study, {**asked, "only": None})
        chosen.append((study, campaign, plans))
    if only:
        names = [f"{study.name}/{plan.name}" for study, _, plans in chosen for plan in plans]
        for pattern in (pattern for pattern in only if not any(matches(name, pattern) for name in names)):
            hint = nearest(pattern, names)
            raise ValueError(f"no run matches --only {pattern!r}{hint}; `lipschitz-rnn reproduce --list` shows all")
        chosen = [
            (study, campaign, [plan for plan in plans if any(matches(f"{study.name}/{plan.name}", o) for o in only)])
            for study, campaign, plans in chosen
        ]
    _report([each for each in chosen if each[2]], **given)


def _plan(study: Study, given: dict[str, Any]) -> tuple[Campaign, list[Plan]]:
    own = {name: given.get(name) for name in study.options}
    changes = given_options(**{name: given[name] for name in ("epochs", "precision", "device", "data_dir", "offline")})
    changes |= given_options(**{name: own.pop(name) for name in _SETTINGS if name in own})
    plans = study.plans(
        given["only"] or (),
        quick=given["quick"],
        groups=[name for name in study.groups if given.get(name)],
        seeds=None if given["seeds"] is None else parse_seeds(given["seeds"]),
        changes=changes,
        options=own,
    )
    out, measures = given["out"], study.measures.configured(given["quick"], own)
    results = given["results"] or out / "results"
    return Campaign(out, results, given["resume"], given["commit"], given["jobs"], measures), plans


def _report(chosen: list[tuple[Study, Campaign, list[Plan]]], *, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Run the plans and print their results."""
    planned = [plan for _, _, plans in chosen for plan in plans]
    if given["engine"] != "ray":
        refuse_cluster_options(given["address"], given["gpus"])
    if dry_run:
        facts = [
            {"name": p.name, "study": p.study, "command": p.command, "settings": p.settings.to_dict()} for p in planned
        ]
        names = [plan.name if len(chosen) == 1 else f"{plan.study}: {plan.name}" for plan in planned]
        typer.echo(json.dumps(facts, indent=2) if as_json else "\n".join(names))
        return
    choose_threads_for_runs([plan.settings for plan in planned])
    for _, campaign, plans in chosen:  # check all studies before the first one starts
        campaign.check(plans)
    with _engine(**given) as engine:
        watch = watch_runs(2 if engine is not None else given["jobs"], quiet=as_json)  # its processes print no bars
        outcomes = [run_study(study, _on(engine, campaign), plans, watch) for study, campaign, plans in chosen]
    records = [record for outcome in outcomes for record in outcome.records]
    if as_json:
        typer.echo(json.dumps(_facts(outcomes), indent=2))
    else:
        console = Console()
        _print_scores(console, records)
        for path in (path for outcome in outcomes for path in outcome.written):
            console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    failed = [name for outcome in outcomes for name in outcome.failed]
    if failed:
        raise RunError(
            f"{len(failed)} of {len(planned)} runs failed: {'; '.join(failed)}; the reasons are above; when they are "
            "gone, continue with --resume"
        )


def _on(engine: Engine | None, campaign: Campaign) -> Campaign:
    """The campaign on an engine, whose processes have working folders of their own."""
    if engine is None:
        return campaign
    return replace(campaign, engine=engine, out=campaign.out.absolute(), results=campaign.results.absolute())


def _engine(engine: EngineName, jobs: int, address: str | None, gpus: float | None, device: str, **_: Any) -> Any:
    """The engine of all studies; None for processes that each study starts itself."""
    if engine == "local" and address is None and gpus is None:
        return nullcontext()
    return make_engine(engine, jobs if jobs > 1 else None, address=address, gpus=gpus, device=device)


def _facts(outcomes: list[Outcome]) -> dict[str, Any]:
    runs = [
        {"name": record.name, "seconds": record.seconds, "metric": record.metric, "seeds": record.seeds}
        for outcome in outcomes
        for record in outcome.records
    ]
    written = [str(path) for outcome in outcomes for path in outcome.written]
    return {"runs": runs, "written": written, "failed": [name for outcome in outcomes for name in outcome.failed]}


def _print_scores(console: Console, records: list[Record]) -> None:
    """Minimum, mean and maximum test score at the selected epoch, and the mean at the last epoch."""
    table = Table(title="test, at the epoch selected on validation data", title_justify="left")
    table.add_column("run", overflow="fold")
    for column in ("networks", "min", "mean", "max", "last", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for record in records:
        values = (*spread(record.scores()), spread(record.scores("test_last"))[1])
        shown = [show_score(value, record.percent).removesuffix(" %") for value in values]
        table.add_row(record.name, count_seeds(record.seeds), *shown, show_duration(record.seconds))
    if records:
        console.print(table)


for _study in STUDIES.values():
    _make(_study)
_ALL = """Run all studies, with all their groups of runs.

Each study has its own folder in --out. After an interruption, continue with the same command and --resume.

[bold]Example[/]

  lipschitz-rnn reproduce all --quick -o runs/quick
"""
_command("all", None, _run_all, _ALL)
