"""trainyard: the command of the operator's image."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from trainyard import __version__
from trainyard.api import crd
from trainyard.controller import process
from trainyard.controller.release import Operators, StillHeld, release
from trainyard.controller.settings import Settings, SettingsError, read, variable
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.telemetry import logs

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(arguments)
    run = options.run
    code: int = run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainyard", description="Multi-node AI training on Kubernetes.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    operator = commands.add_parser("operator", help="run the operator until SIGTERM")
    for name, field in Settings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        operator.add_argument(flag, metavar="VALUE", help=f"{field.description} ({variable(name)})")
    operator.set_defaults(run=_operator)

    letting_go = commands.add_parser(
        "release", help="take Trainyard's finalizers off all pods and jobs, before uninstalling"
    )
    letting_go.add_argument(
        "--deployment", metavar="NAMESPACE/NAME", type=_namespaced, help="Deployment of operators to stop first"
    )
    letting_go.add_argument("--operators", metavar="SELECTOR", help="labels of its pods; needed with --deployment")
    letting_go.add_argument(
        "--keep-pods", action="store_true", help="leave gangs training; otherwise their pods are deleted"
    )
    letting_go.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    letting_go.set_defaults(run=_release)

    commands.add_parser("crds", help="print the CustomResourceDefinitions").set_defaults(run=_crds)
    commands.add_parser("version", help="print the version").set_defaults(run=_version)
    return parser


def _operator(options: argparse.Namespace) -> int:
    try:
        settings = read(os.environ, {name: getattr(options, name) for name in Settings.model_fields})
        key = settings.key()
    except SettingsError as error:
        return _wrong(str(error))
    logs.configure(settings.log_level)
    return asyncio.run(process.run(settings, key))


def _release(options: argparse.Namespace) -> int:
    if (options.deployment is None) != (options.operators is None):
        return _wrong("--deployment and --operators are given together or not at all")
    logs.configure(options.log_level)
    operators = None
    if options.deployment:
        namespace, name = options.deployment
        operators = Operators(namespace, name, options.operators)

    async def run() -> int:
        async with await KubeClient.from_environment() as client:
            return await release(client, operators, keep_pods=options.keep_pods)

    try:
        print(f"released {asyncio.run(run())}")
    except (ApiError, StillHeld) as error:
        print(f"trainyard: {error}", file=sys.stderr)
        return 1
    return 0


def _crds(_: argparse.Namespace) -> int:
    for text in crd.files().values():
        print("---")
        print(text, end="")
    return 0


def _version(_: argparse.Namespace) -> int:
    print(__version__)
    return 0


def _namespaced(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return namespace, name


def _wrong(message: str) -> int:
    print(f"trainyard: {message}", file=sys.stderr)
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
