"""Values of command line options: `NAME=VALUE` pairs, and image files by name, folder, pattern or standard input."""

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import typer

from attngraft.cli.output import counts_displayed, echo, is_first_process
from attngraft.errors import DataError, UsageError
from attngraft.suggest import quoted

HOST = (
    "A timm model; or attngraft:NAME, torchvision:NAME, hf:FOLDER, hf:USER/NAME (transformers), "
    "module:package.path:factory (your own)."
)  #: help of --host
PRETRAINED = "Start from the published weights of the host, or those in its folder."  #: help of --pretrained
MODEL = (
    "Run folder, exported folder, host (see attngraft compare --help), or weights file that names its host "
    "(attngraft convert)."
)  #: help of a model argument
HOST_ARG = "Argument of the host's factory; repeatable."  #: help of --host-arg
START = "Start from a file or folder: .safetensors, .pth, a run, or a transformers folder."  #: help of --weights
#: help of --task
TASK = "The task, trained with its default recipe unless --recipe is given. Default: the one that fits the data."
#: help of --auto-batch
AUTO_BATCH = "After an out-of-memory error, use smaller micro-batches; each update still uses the same examples."
#: help of --track
TRACK = "Also send settings and metrics to a tracker: wandb, mlflow, trackio, comet_ml, ...; repeatable."
#: help of --cache
CACHE = (
    "Disk space for decoded images while training: auto (all, if they take little space), off, or a size such as 4GB; does "
    "not affect results. Default: auto."
)
DEVICE = "Device: cpu, cuda, cuda:1, mps, ... Default: the accelerator, if any."  #: help of --device
HOST_WEIGHTS = "Load this file as the weights of the host."  #: help of --host-weights
#: help of --trust-code
TRUST_CODE = "Allow module:... hosts named in a file or folder, and .pt2 programs; both run code."

#: help of --allow-download
ALLOW_DOWNLOAD = (
    "Allow downloads of hosts and data sets named in a file or folder; names that you type need no permission."
)
_RECEIVED = ("study.yaml", "recipe.yaml")  #: files in the folders of studies and runs


def limit_downloads(context: typer.Context, allow_download: bool) -> bool:
    """Permit downloads of the names on the command line, or all of them; the callback of --allow-download."""
    from attngraft.downloads import downloads_of

    if not context.resilient_parsing:
        context.with_resource(downloads_of(_texts(context.params), allow_download=allow_download))
    return allow_download


def limit_downloads_of_file(context: typer.Context, allow_download: bool) -> bool:
    """Do the same if --study or --recipe is the file in the folder of a study or a run; other files are the user's own."""
    files = (context.params.get(name) for name in ("study", "recipe"))
    if allow_download or any(file is not None and Path(file).name in _RECEIVED for file in files):
        limit_downloads(context, allow_download)
    return allow_download


def _texts(values: Mapping[str, Any]) -> list[str]:
    """Return the texts among the values of options; options that are not given come after those that are."""
    lists = [value if isinstance(value, list | tuple) else [value] for value in values.values()]
    return [str(each) for value in lists for each in value if isinstance(each, str | Path)]


def refuse_untyped_hosts(names: Iterable[str], *, typed: Iterable[str | None]) -> None:
    """Check that every `module:` host occurs in the command line options `typed`.

    Raises:
        UsageError: a `module:` host was read from a file.
    """
    from attngraft.models.trust import SCHEME, refuse_untrusted

    for name in names:
        if name.startswith(SCHEME) and not any(name in text for text in typed if text):
            refuse_untrusted(name)


def choose_recipe(
    task: str | None, recipe: str | None, data: str | Mapping[str, Any] | None, settings: Sequence[str]
) -> str | None:
    """Return the recipe for the task, for `--task` or the task that fits the data, and print the task's name.

    A recipe, or a task among the settings, takes precedence over the data.

    Args:
        task: `--task`.
        recipe: `--recipe`, or the recipe of a study file.
        data: a source, or a section `task.data`; None: the recipe's.
        settings: `--set`.

    Raises:
        ConfigError, UsageError: see `build.recipe_for_task`.
    """
    from attngraft.tasks.fitting import DEFAULT, fitting_task
    from attngraft.training.build import recipe_for_task
    from attngraft.training.recipe import load_recipe
    from attngraft.yaml_config import apply_overrides

    set_ = [text for text in settings if text.partition("=")[0].strip().partition(".")[0] == "task"]
    reason = ""
    if task is not None:
        recipe = recipe_for_task(task, recipe)
    elif (
        isinstance(data, str | Mapping)
        and recipe is None
        and not any(text.startswith(("task.name=", "task=")) for text in set_)
    ):
        section = {"task": {"data": {"source": data} if isinstance(data, str) else data}}
        of_data = [text for text in set_ if text.startswith("task.data.")]
        task, reason = fitting_task(apply_overrides(section, of_data)["task"]["data"])
        recipe = None if task == DEFAULT else recipe_for_task(task, None)
    if task is None or recipe is not None:
        section = {"task": dict(load_recipe(recipe or "default").task)}
        chosen = apply_overrides(section, set_)["task"]
        if not isinstance(chosen, Mapping):
            raise UsageError(
                f"--set task: expected a section of fields, found {quoted(chosen)}; for a name, use --task NAME"
            )
        task = chosen.get("name")
    if is_first_process():
        echo(f"Task: {task}{f' ({reason}; --task NAME for another)' if reason else ''}", err=True)
    return recipe


def assignments(texts: Sequence[str], *, option: str) -> dict[str, Any]:
    """Return `["img_size=32", "depth=6"]` as a dictionary; values are parsed as YAML.

    Raises:
        UsageError: a text without `=` or without a name, a repeated name, or (ConfigError) a value that is not YAML.
    """
    from attngraft.yaml_config import parse_yaml

    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{option} takes NAME=VALUE, such as img_size=32; got {text!r}")
        if name in values:
            raise UsageError(f"{option} {name} is given twice")
        if name == "pretrained":
            raise UsageError(f"{option} pretrained: use --pretrained instead, if the command has it")
        values[name] = parse_yaml(value, source=f"{option} {name}")
    return values


def check_text(text: str, *, option: str) -> None:
    """Check that the text of an option is Unicode.

    Raises:
        UsageError: it contains bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{option}: the text is not UTF-8; write it to a file in UTF-8, or type it again") from None


def find_images(arguments: Sequence[str], *, stdin: IO[bytes] | None = None) -> list[str]:
    """Return the image files named by `arguments`, in order.

    A folder expands to all images below it in natural order, a pattern (`*.jpg`, `**/*.png`) to the matching files, and
    `-` to the lines of `stdin`. Names of missing files are kept: opening them fails later, without stopping the others.

    Raises:
        UsageError: a folder, a pattern or a list without images; the message names it.
        DataError: a folder that cannot be read.
    """
    return [path for argument in arguments for path in _expand(argument, stdin)]


def find_files(arguments: Sequence[str], extensions: Sequence[str]) -> list[str]:
    """Return the files with these extensions in folders and of patterns, in natural order, and other names as they are.

    Raises:
        UsageError: a folder or a pattern without such files; the message names it.
    """
    from attngraft.tasks.images.sources.listing import natural

    found: list[str] = []
    for argument in arguments:
        if os.path.isdir(argument):
            names = (os.path.join(top, name) for top, _, files in os.walk(argument) for name in files)
        elif glob.has_magic(argument) and not os.path.lexists(argument):
            names = (name for name in _matching(argument) if os.path.isfile(name))
        else:
            found.append(argument)
            continue
        matching = sorted((name for name in names if name.lower().endswith(tuple(extensions))), key=natural)
        if not matching:
            raise UsageError(f"{argument}: no file ends in {', '.join(extensions)}")
        found += matching
    return found


def find_texts(arguments: Sequence[str], *, column: str, stdin: IO[bytes] | None = None) -> list[str]:
    """Return the texts of tables, the lines of other files, and, for `-`, the lines of `stdin`.

    Raises:
        UsageError: a missing file, or no texts.
        DataError: a file that cannot be read.
    """
    from attngraft.tasks.text.source import read_texts

    found: list[str] = []
    for argument in arguments:
        if argument == "-":
            texts = _lines(stdin)
        elif not os.path.isfile(argument):
            raise UsageError(f"{argument}: no such file; give a table or a text file, or --text TEXT")
        else:
            texts = read_texts(Path(argument), column)
        if not texts:
            raise UsageError(f"{argument}: contains no texts")
        found += texts
    return found


def find_lines(arguments: Sequence[str], *, stdin: IO[bytes] | None) -> Iterator[str]:
    """Return the lines of files, plain or .gz, and, for `-`, those of `stdin` as they arrive; blank lines are kept.

    Raises:
        UsageError: a missing file.
        DataError: a file that cannot be read, or input that is not text.
    """
    missing = next((each for each in arguments if each != "-" and not os.path.isfile(each)), None)
    if missing is not None:
        raise UsageError(f"{missing}: no such file; give files with one sentence per line, or --text TEXT")
    from attngraft.tasks.images.sources.table import KINDS

    table = next((each for each in arguments if Path(each).suffix.lower() in KINDS), None)
    if table is not None:
        raise UsageError(f"{table}: tables are not translated; give files with one sentence per line, or --text TEXT")
    return (line for argument in arguments for line in _lines_of(argument, stdin))


def _lines_of(argument: str, stdin: IO[bytes] | None) -> Iterator[str]:
    from attngraft.tasks.translation.files import read_lines

    if argument != "-":
        yield from read_lines(Path(argument))
        return
    for number, line in enumerate(stdin or (), start=1):
        try:
            yield line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"standard input: line {number} is not UTF-8 text; convert it to UTF-8") from None


def _lines(stdin: IO[bytes] | None) -> list[str]:
    lines = [os.fsdecode(line.rstrip(b"\r\n")) for line in stdin or ()]
    return [line for line in lines if line.strip()]


def _matching(pattern: str) -> Iterator[str]:
    """Yield the paths that match `pattern`; `**` stands for any number of nested folders, without following links.

    Raises:
        UsageError: the pattern has more than one `**`.
    """
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    at = parts.index("**")
    if "**" in parts[at + 1 :]:
        raise UsageError(f"{quoted(pattern)}: ** is supported once in a pattern; remove the others")
    before, after = "/".join(parts[:at]), "/".join(parts[at + 1 :]) or "*"
    for top in glob.iglob(f"{before}/") if before or pattern.startswith("/") else [""]:
        for folder, inner, _ in os.walk(top or "."):
            inner[:] = [name for name in inner if not name.startswith(".")]
            yield from (os.path.normpath(os.path.join(folder, name)) for name in glob.iglob(after, root_dir=folder))


def _expand(argument: str, stdin: IO[bytes] | None) -> list[str]:
    from attngraft.tasks.images.sources.folder import list_folder
    from attngraft.tasks.images.sources.listing import is_image, natural

    if not argument:
        raise UsageError("an input is empty; give a file, a folder or a pattern (. for the current folder)")
    if argument == "-":
        names = _lines(stdin)
        if not names:
            raise UsageError("-: standard input is empty; write one image name per line to it")
        if any("\0" in name for name in names):
            raise UsageError(
                "-: standard input contains a zero byte; write one image name per line, as find -print does"
            )
        return names
    path = Path(argument)
    if os.path.isdir(argument):  # False also for names that are too long
        with counts_displayed():
            below = sorted(list_folder(path).files, key=natural)
        if not below:
            raise UsageError(f"{argument}: no images in this folder or below it")
        return [str(path / name) for name in below]
    if glob.has_magic(argument) and not os.path.lexists(argument):
        matches = sorted(_matching(argument), key=natural)
        files = [name for name in matches if os.path.isfile(name) and is_image(name.replace(os.sep, "/"))]
        if not files:
            raise UsageError(f"{argument}: no image matches this pattern")
        return files
    return [argument]
