"""The documentation: its commands parse, its blocks run, its links resolve, its figures match the weights."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import fields
from pathlib import Path
from urllib.parse import unquote

import examples
import mermaid
import pytest
import reference
import tutorials
from formulas import split_indices

from tests.helpers.documents import ROOT, TESTED_BLOCKS
from twotemp.records import Policy, Trace


def tutorial(name: str) -> str:
    return (tutorials.FOLDER / f"{name}.md").read_text()


BLOCKS = [block for page in examples.pages() for block in examples.blocks(page)]
CODE = [block for block in BLOCKS if block.shell or block.language == "python"]
# Run by repository/test_documents.py, by serving/test_serving.py, and as steps of a tutorial. All others run below.
ELSEWHERE = {
    *TESTED_BLOCKS,
    *(block.code for block in CODE if (block.page, block.language) == ("docs/serve.md", "python")),
    *(code for name in tutorials.names() for code in tutorials.steps(tutorial(name))),
}
REST = [block for block in CODE if block.not_run is None and block.code not in ELSEWHERE]
CURL = [block for block in REST if block.shell and re.search(r"curl .*127\.0\.0\.1:8000", block.code)]
RUN = [block for block in REST if block.shell and block not in CURL]
PYTHON = [block for block in REST if not block.shell]


# The command line


def parse_error(words: list[str]) -> str | None:
    """Return the error of the command line's parser for `twotemp WORDS`, or None; nothing is run."""
    command = reference.command_line().commands.get(words[0]) if words else None
    if words and words[0].startswith("-"):
        return None if words == ["--help"] or words == ["--version"] else f"unknown option {words[0]}"
    if command is None:
        return f"unknown command {words[:1]}"
    if words[0] == "lm-eval":
        return None  # options of another program
    if "..." in words:
        return None  # an excerpt
    try:
        command.make_context(words[0], list(words[1:]))
    except Exception as error:
        return str(error)
    return None


def twotemp_commands(code: str) -> list[list[str]]:
    """Return the words after `twotemp` in every command of a block, also after `srun`, `torchrun` and the like."""
    lines = [re.sub(r"\s#\s.*$", "", line) for line in code.splitlines()]
    every = examples.commands("\n".join(lines))
    nested = [
        c
        for words in every
        for word in words
        if " " in word and "twotemp " in word
        for c in examples.commands(word)
    ]
    return [
        words[words.index("twotemp") + 1 :]
        for words in [*every, *nested]
        if "twotemp" in words and words[0] not in ("pip", "cd", "#")
    ]


@pytest.mark.parametrize("page", examples.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_the_docs_is_accepted_by_the_parser(page):
    for block in examples.blocks(page):
        for words in twotemp_commands(block.code) if block.shell else ():
            assert parse_error(words) is None, f"{block}: twotemp {' '.join(words)}: {parse_error(words)}"


@pytest.mark.parametrize("page", examples.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_a_sentence_and_their_options_exist(page):
    for words in re.findall(r"`twotemp ([a-z][^`]*)`", examples.prose(page)):
        name, *rest = words.split()
        command = reference.command_line().commands.get(name)
        assert command, f"twotemp {words}"
        options = {option for parameter in command.params for option in parameter.opts}
        assert [w for w in rest if w.startswith("--") and w != "--help" and w not in options] == [], words


def test_the_examples_of_the_help_are_accepted_by_the_parser():
    commands = [
        w
        for line in reference.commands().splitlines()
        if line.startswith("    ")
        for w in twotemp_commands(line.strip())
    ]
    assert len(commands) >= 20
    assert [words for words in commands if parse_error(words)] == []


@pytest.mark.parametrize(
    "line",
    [
        "twotemp evaluate",
        "twotemp eval --task a",
        "twotemp eval --task a --out r --qestions 3",
        "twotemp sample",
    ],
)
def test_a_wrong_command_is_detected(line):
    assert parse_error(line.split()[1:])


def test_the_reference_names_every_command_and_option():
    page = reference.commands()
    sections = dict(
        zip(re.findall(r"^## (\S+)$", page, flags=re.M), re.split(r"^## \S+$", page, flags=re.M)[1:])
    )
    assert set(sections) == set(reference.command_line().commands)
    for name, command in reference.command_line().commands.items():
        for parameter in command.params:
            names = parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()]
            assert [
                n for n in names if f"`{n}`" not in sections[name] and f"`[{n}]`" not in sections[name]
            ] == []


def test_the_generated_pages_are_complete():
    from twotemp.graders import descriptions
    from twotemp.policies import PRESETS
    from twotemp.tasks import TASKS

    for page, names in {"policies": PRESETS, "tasks": TASKS, "graders": descriptions()}.items():
        assert re.findall(r"^\| `(.+?)` \|", reference.PAGES[page](), flags=re.M) == list(names)


def test_the_fields_of_records_are_described():
    rows = {record: reference.field_list(record).splitlines()[2:] for record in reference.RECORDS}
    assert all(
        f"| `{field.name}` |" in row for record in rows for field, row in zip(fields(record), rows[record])
    )
    page = (ROOT / "docs" / "api.md").read_text()
    assert [r.__name__ for r in rows if f"generated/fields-{r.__name__}.md" not in page] == []
    assert "position temperature" in reference.field_list(Policy)
    assert "probability of the committed token" in reference.field_list(Trace)


def test_all_public_names_are_in_the_api_page():
    import twotemp

    page = (ROOT / "docs" / "api.md").read_text()
    assert set(re.findall(r"auto(?:function|class|exception):: (\w+)(?:\(\))?$", page, flags=re.M)) == set(
        twotemp.__all__
    )


def test_what_a_plug_in_calls_is_in_the_api_page():
    from twotemp import plugins

    page = (ROOT / "docs" / "api.md").read_text()
    (members,) = re.findall(r"automodule:: twotemp\.plugins\n\s+:members: (.*)", page)
    assert set(members.split(", ")) == {name for name in vars(plugins) if name.startswith("add_")}
    for name in members.split(", "):
        assert getattr(plugins, name).__doc__, name


# Blocks


def test_every_block_is_run_or_has_a_reason_why_not():
    """Unmarked blocks are run; other languages, other fences and stray comments would hide a block."""
    known = (*examples.SHELL, "python", "text", "mermaid", "math")
    assert [str(b) for b in BLOCKS if b.language not in known and not b.language.startswith("{")] == []
    hidden = re.compile(r"^[\s>*+-]*(?:```|~~~|<!-- not run|<pre).*", flags=re.M)
    assert {
        page.name: matches for page in examples.pages() if (matches := hidden.findall(examples.prose(page)))
    } == {}


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ twotemp policies\n```\n",
        "~~~\ntwotemp policies\n~~~\n",
        "> ```shell\n> twotemp policies\n> ```\n",
        "<!-- not run: needs a GPU -->\nHere it is.\n\n```shell\ntwotemp policies\n```\n",
    ],
)
def test_a_hidden_block_is_detected(text, tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(f"# A page\n\n{text}")
    monkeypatch.setattr(examples, "ROOT", tmp_path)
    monkeypatch.setattr(examples, "pages", lambda: [tmp_path / "page.md"])
    monkeypatch.setitem(globals(), "BLOCKS", list(examples.blocks(tmp_path / "page.md")))
    with pytest.raises(AssertionError):
        test_every_block_is_run_or_has_a_reason_why_not()


@pytest.mark.parametrize(
    "text", ["```\ncurl x\n```\n", "    curl x\n", "1. It\n\n   ```\n   curl x\n   ```\n"]
)
def test_a_block_without_a_language_is_shell(text, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(f"# A page\n\n{text}")
    (block,) = examples.blocks(tmp_path / "page.md")
    assert (block.shell, block.code, block.not_run) == (True, "curl x\n", None)


def test_the_reasons_for_not_running_a_block_are_acceptable():
    reasons = {block.not_run for block in CODE if block.not_run is not None}
    accepted = (
        "needs a GPU",
        "needs a cluster",
        "needs a checkpoint",
        "needs the network",
        "installs packages",
        "is a benchmark",
    )
    assert [reason for reason in reasons if not reason.startswith(accepted)] == []
    assert sum(block.not_run is not None for block in CODE) < len(CODE) / 2


# Links


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and MyST make from the headings of a page."""
    heads = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), flags=re.M
    )
    if "generated/commands.md" in page.read_text():
        heads += list(reference.command_line().commands)
    for included in re.findall(r"\{include\} (\.\./\S+)", page.read_text()):
        heads += re.findall(r"^#+ (.+)$", (page.parent / included).read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", examples.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        name, _, anchor = unquote(target).partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page}: {target}"
        assert linked.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(linked), f"{page}: no heading {target}"


def test_every_formula_can_be_drawn():
    """The site's writer knows a part of LaTeX; the site is built by the slow tests only."""
    math = pytest.importorskip("docutils.utils.math.latex2mathml", reason="needs the extra [docs]")

    formulas = [
        f
        for page in (ROOT / "docs").rglob("*.md")
        for f in re.findall(r"```math\n(.*?)```", page.read_text("utf-8"), re.S)
    ]
    assert formulas
    for formula in formulas:
        math.tex2mathml(formula, as_block=True)


def test_every_page_is_in_the_table_of_contents():
    docs = ROOT / "docs"
    listed = {
        (page.parent / name).resolve()
        for page in docs.rglob("*.md")
        for toc in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), flags=re.S)
        for name in re.findall(r"^(?:.* <)?([\w/-]+)>?$", toc, flags=re.M)
    }
    pages = {page.with_suffix("") for page in examples.pages() if page.is_relative_to(docs)}
    assert pages - listed == {docs / "index"}


# Figures


def test_every_diagram_is_drawn():
    assert mermaid.diagrams()
    assert [
        mermaid.picture(source).name for source in mermaid.diagrams() if not mermaid.picture(source).is_file()
    ] == []


def test_the_figures_were_drawn_with_the_shipped_weights():
    """If they were not, run `python -m docs.tools.pictures` and look at the figures."""
    image = pytest.importorskip("PIL.Image", reason="needs matplotlib (pip install 'twotemp[plots]')")
    digest = hashlib.sha256(
        (ROOT / "src/twotemp/models/weights/tiny/model.safetensors").read_bytes()
    ).hexdigest()
    digests = {
        p.name: image.open(p).text.get("Weights") for p in (ROOT / "docs" / "figures").glob("idea-*.png")
    }
    assert len(digests) == 4
    assert {name for name, weights in digests.items() if weights != digest} == set()


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("At T_pos = 0", [("text", "At T"), ("sub", "pos"), ("text", " = 0")]),
        ("c_j^{1/T}", [("text", "c"), ("sub", "j"), ("sup", "1/T")]),
        ("(1 − c)^m of", [("text", "(1 − c)"), ("sup", "m"), ("text", " of")]),
        ("argmax_i q", [("text", "argmax"), ("sub", "i"), ("text", " q")]),
        ("pass_at_k and block_size", [("text", "pass_at_k and block_size")]),
    ],
)
def test_indices_of_formulas_are_found(text, pieces):
    assert split_indices(text) == pieces


# Running the blocks


SMALL = """
import os, signal, socket, sys, threading
from twotemp.cli import main

SMALL = {
    "eval": {"-n": "2", "--questions": "2", "--workers": "1"},
    "tune": {"--at": "pass@2", "--budget": "60000", "--questions": "4"},
    "forks": {"--questions": "2"},
    "grpo": {"--budget": "1steps", "--held-out": "2", "--groups": "2", "--size": "2"},
    "drift": {"--questions": "2"},
}
words = sys.argv[1:]
for option, value in SMALL.get(words[0], {}).items():
    if option in words:
        words[words.index(option) + 1] = value
    else:
        words += [option, value]
if words[0] in ("serve", "play"):
    import twotemp.serving.listener as app

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        words += ["--port", str(probe.getsockname()[1])]
    words += ["--no-browser"] if words[0] == "play" else []
    run = app.run

    def interrupt():
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    app.run = lambda server, host, port, on_start: run(server, host, port, [*on_start, interrupt])
sys.argv[1:] = words
try:
    main()
except SystemExit as stop:
    if not (words[0] in ("serve", "play") and stop.code == 130):  # the Ctrl-C above
        raise
"""


# Pages whose code needs an extra: its module and its name.
OPTIONAL = {
    "docs/diffusers.md": ("diffusers", "diffusers"),
    "docs/inspect.md": ("inspect_ai", "inspect"),
    "docs/lm-eval.md": ("lm_eval", "lm-eval"),
    "docs/trl.md": ("trl", "trl"),
}


def skip_without_extra(block: examples.CodeBlock) -> None:
    """Skip the test if the page's extra is not installed."""
    if block.page in OPTIONAL:
        module, extra = OPTIONAL[block.page]
        pytest.importorskip(module, reason=f"needs the extra: pip install 'twotemp[{extra}]'")


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_in_the_pages_runs(block):
    skip_without_extra(block)
    exec(block.code, {})


@pytest.mark.parametrize("block", CURL, ids=str)
def test_a_server_answers_the_requests_of_the_pages(block, tmp_path):
    import twotemp
    from tests.helpers.serving_clients import listening
    from twotemp.serving import Server

    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    with listening(Server(twotemp.load("tiny"), slots=8)) as (_, port):
        answer = examples.run_shell(block.code.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), tmp_path)
    assert json.loads(answer)["choices"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", RUN, ids=str)
def test_blocks_run(block, tmp_path):
    """They run with few questions and samples; servers are stopped once they are ready."""
    skip_without_extra(block)
    for folder in ("experiments", "benchmarks", "recipes"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    examples.run_shell(prerequisites(block) + block.code, tmp_path, main=SMALL)


def prerequisites(block: examples.CodeBlock) -> str:
    """Return the code of earlier blocks of the page that create the run directories which a block uses."""
    earlier = [b.code for b in RUN if b.page == block.page and b.line < block.line]
    made = re.findall(r"--out (runs/\w+)", block.code)
    used = set(re.findall(r"(?<![\w-])(runs/\w+)", block.code)) - set(made)
    return "".join(code for code in earlier if any(run in code for run in used))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", tutorials.names())
def test_tutorials_print_their_output(name, tmp_path):
    """If the weights have changed, run `python docs/tools/tutorials.py` and read the result."""
    page = tutorial(name)
    assert tutorials.run(page, tmp_path, {"--budget 1m": "--budget 2steps"}) == page
    for picture in tutorials.pictures(page):
        assert (tmp_path / picture).is_file()
        assert (ROOT / "docs" / "tutorials" / picture).is_file()


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("furo", reason="needs the site's packages (make docs)")
    from sphinx.cmd.build import main

    assert main(["-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs"), str(tmp_path)]) == 0
