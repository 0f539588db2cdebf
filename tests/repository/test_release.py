"""What a newcomer and a release need: how to install, metadata, cards of the weights, where to report a hole."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WEIGHTS = ROOT / "src" / "twotemp" / "models" / "weights"


def test_the_readme_says_how_to_install_and_what_a_large_model_needs():
    install = README.index("pip install ")
    assert install < README.index("import twotemp"), "before the first example"
    assert re.search(r"LLaDA-8B needs about \d+ GB", README)


def test_tables_of_the_readme_are_narrow_and_name_their_columns():
    tables = re.findall(r"^(\|.*\|)\n(\|[ :|-]+\|)\n((?:\|.*\|\n)+)", README, flags=re.M)
    assert tables
    for head, _, _ in tables:
        names = [name.strip() for name in head.strip("|").split("|")]
        assert len(names) <= 6, head
        assert all(names), f"a column without a name: {head}"


def test_the_numbers_of_the_readme_are_generated():
    """The rest of the text has no measured percentage."""
    assert re.findall(r"\d+\.\d+ → ", README)
    assert not re.findall(
        r"\d+\.\d+ → |[+−]\d+\.\d", re.sub(r"<!-- generated.*?<!-- end -->", "", README, flags=re.S)
    )


def test_the_metadata_of_the_package():
    project = BUILD["project"]
    assert project["authors"]
    assert project["license"] == "Apache-2.0"
    assert any(name.startswith("Operating System ::") for name in project["classifiers"])


def test_the_source_distribution_contains_the_tests():
    found = BUILD["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert "only-include" not in found
    assert "include" not in found
    assert not [path for path in found.get("exclude", ()) if path.strip("/").startswith("tests")]


@pytest.mark.parametrize("model", sorted(path.name for path in WEIGHTS.iterdir() if path.is_dir()))
def test_every_embedded_model_has_a_card_with_its_licence(model):
    card = (WEIGHTS / model / "README.md").read_text("utf-8")
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["license"] == "apache-2.0"
    assert "**Training" in card, "it says where the weights come from"


def test_ci_covers_two_systems_the_documentation_and_the_wheel():
    (workflow,) = (path for path in (ROOT / ".github" / "workflows").iterdir() if path.stem == "ci")
    text = workflow.read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert "ubuntu-latest" in text
    assert "macos-latest" in text
    assert "docs" in jobs
    assert re.search(r"python -m build", text)
    assert (ROOT / ".readthedocs.yaml").is_file()


def test_the_security_page_says_where_to_report_a_hole():
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    section = page[page.lower().index("report") :].lower()
    assert "private" in section
    assert "**security**, then **advisories**" in section
