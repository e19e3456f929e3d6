"""Hooks of mkdocs: files outside docs/ that pages link to, and the report of all committed runs.

Links of a page are those of the repository: `../benchmarks/runs.py` works where the repository is
read. On the website the Markdown files of the root are pages, sources and folders are pages that
show them, and other files are copied.
"""

import ast
import html
import logging
import posixpath
import re
import zlib
from dataclasses import replace
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from protosphere.report.create import create_report
from protosphere.report.read import read_sources

_log = logging.getLogger("mkdocs.hooks.protosphere")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
REPORT = "all-runs.html"
# Where a page says it, the website links to the report, which the repository does not have.
REPORT_LINK = "<!-- .ci/docs_hooks.py puts the link to all-runs.html here -->"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_SOURCES = {".py": "python", ".cff": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside of docs/, and what those files link to."""
    waiting = [
        (f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()
    ]
    while waiting:
        place, text = waiting.pop()
        for path in _linked_paths(place, text):
            uri = _site_uri(path)
            if path.startswith("docs/") or uri in files.src_uris:
                continue
            file = _create_file(path, uri, config)
            files.append(file)
            if path.endswith(".md"):
                waiting.append((path, file.content_string))
    files.append(File.generated(config, REPORT, content=_create_report()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave docs/, and put in the link to the report."""
    place = _repository_path(page.file.src_uri)

    def relative(uri: str) -> str:
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")

    def target(match: re.Match[str]) -> str:
        path = _resolve(place, match[1])
        return match[1] if path is None else relative(_site_uri(path))

    report = f"[The report of all runs]({relative(REPORT)}) is on this website."
    return _LINK.sub(target, markdown).replace(REPORT_LINK, report)


def _create_file(path: str, uri: str, config: MkDocsConfig) -> File:
    source = ROOT / path
    if source.is_dir():
        content = _list_folder(path)
    elif source.suffix in _SOURCES:
        code = source.read_text(encoding="utf-8")
        content = f"# {path}\n\n````{_SOURCES[source.suffix]}\n{code}````\n"
    elif source.suffix == ".md":
        content = source.read_text(encoding="utf-8")
    else:
        return File.generated(config, uri, abs_src_path=str(source))
    return File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV)


def _list_folder(path: str) -> str:
    """Return a page with the names and sizes of the files of a folder."""
    files = sorted(file for file in (ROOT / path).rglob("*") if file.is_file())
    rows = "\n".join(
        f"| `{html.escape(file.relative_to(ROOT / path).as_posix())}` | {file.stat().st_size:,} |"
        for file in files
        if "__pycache__" not in file.parts
    )
    return f"# {path}\n\nIn the repository.\n\n| file | bytes |\n|---|---:|\n{rows}\n"


def _create_report() -> str:
    """Return the report of all committed runs as HTML; it does not load torch."""
    report = read_sources([RESULTS])
    # Paths in the repository, not on the machine that builds the website.
    runs = tuple(replace(run, path=run.path.relative_to(ROOT)) for run in report.runs)
    return create_report(replace(report, runs=runs))


def on_post_build(config: MkDocsConfig) -> None:
    """Warn, which strict builds do not accept, if the reference lacks a public name."""
    documented = _documented_names(Path(config.site_dir) / "objects.inv")
    for package in sorted((ROOT / "src/protosphere").glob("*/__init__.py")):
        prefix = f"protosphere.{package.parent.name}"
        for name in _exported_names(package):
            # Where a module has the name of its function, the module has the shorter path.
            module = (package.parent / f"{name}.py").exists()
            if (f"{prefix}.{name}.{name}" if module else f"{prefix}.{name}") not in documented:
                _log.warning(
                    f"The API reference does not have '{prefix}.{name}': add a docstring to it, "
                    f"and '::: {prefix}' to docs/api/{package.parent.name}.md."
                )


def _documented_names(inventory: Path) -> set[str]:
    """Return the names of an inventory in the format of Sphinx: four lines, then zlib."""
    compressed = inventory.read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(compressed).decode().splitlines()}


def _exported_names(package: Path) -> list[str]:
    """Return ``__all__`` of a package without importing it."""
    for statement in ast.parse(package.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return list(ast.literal_eval(statement.value))
    return []


def _linked_paths(place: str, text: str) -> list[str]:
    paths = (_resolve(place, match[1]) for match in _LINK.finditer(text))
    return [path for path in paths if path is not None]


def _resolve(place: str, link: str) -> str | None:
    """Return the path in the repository that a link of a file leads to, if it leads to one."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _site_uri(path: str) -> str:
    """Return where the website has a path of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    if "/" not in path and path.endswith(".md"):
        return f"project/{path.lower()}"
    if (ROOT / path).is_dir():
        return f"repository/{path}/index.md"
    if Path(path).suffix in _SOURCES:
        return f"repository/{path}.md"
    return f"repository/{path}"


def _repository_path(uri: str) -> str:
    """Return the path in the repository of a page of the website."""
    if uri.startswith("project/"):
        return f"{Path(uri).stem.upper()}.md"
    return f"docs/{uri}"
