"""Objects out of files: what a user is about to apply, or has saved from a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from trainyard.api import names
from trainyard.api.strict import job_errors
from trainyard.api.validate import read_job
from trainyard.world.records import Job

_UID: Final = "planned"

T = TypeVar("T")


class ManifestError(Exception):
    """A file that holds no TrainingJob that could be planned; the text says where and why."""


def read_jobs(text: str, namespace: str, now: float) -> list[Job]:
    """The TrainingJobs of a text, as they would be once applied. Other objects are passed over.

    namespace: of those that name none. ManifestError names every field that is wrong.
    """
    return [job_of(document, f"{_UID}-{number}", namespace, now) for number, document in enumerate(job_documents(text))]


def job_documents(text: str) -> list[Mapping[str, Any]]:
    """The TrainingJobs of a text, at least one."""
    found = [document for document in documents(text) if is_a(document, names.KIND_JOB, names.API_VERSION)]
    if not found:
        raise ManifestError(f"holds no {names.KIND_JOB} of {names.API_VERSION}")
    return found


def documents(text: str) -> Iterator[Mapping[str, Any]]:
    """The objects of a YAML text, those in lists one by one."""
    try:
        loaded = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ManifestError(f"is not YAML: {error}") from error
    for document in loaded:
        if isinstance(document, Mapping):
            items = document.get("items")
            yield from items if isinstance(items, list) else [document]


def is_a(document: object, kind: str, version: str) -> bool:
    """Whether a document is an object of a kind."""
    return isinstance(document, Mapping) and document.get("kind") == kind and document.get("apiVersion") == version


def of_file(filename: str, reading: Callable[[str], T]) -> T:
    """What is made of a file's text; `-` is standard input. ManifestError, with the file's name, where nothing can be."""
    try:
        return reading(sys.stdin.read() if filename == "-" else Path(filename).read_text())
    except OSError as error:
        raise ManifestError(f"{filename}: {error.strerror}") from error
    except (ManifestError, UnicodeDecodeError) as error:
        raise ManifestError(f"{'standard input' if filename == '-' else filename}: {error}") from error


def job_of(document: Mapping[str, Any], uid: str, namespace: str, now: float) -> Job:
    """A TrainingJob as it would be once applied. ManifestError names every field that is wrong."""
    metadata = document.get("metadata") or {}
    read = read_job({**document, "status": {}})
    said = {error.path for error in read.errors}
    errors = [*(error for error in job_errors(document) if error.path not in said), *read.errors]
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    if errors:
        lines = "\n".join(f"  {error}" for error in errors)
        raise ManifestError(f"{names.KIND_JOB} {name or 'without a name'} would be refused:\n{lines}")
    return Job(
        namespace=str(metadata.get("namespace") or namespace),
        name=name,
        uid=uid,
        generation=1,
        resource_version="",
        created=now,
        spec=read.spec,
        status=read.status,
        held=True,
    )
