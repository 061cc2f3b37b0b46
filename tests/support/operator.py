"""The real operator as a process against the real API server, with the rights that the chart gives it and no others."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from support import chart
from support.api import RESOURCES, Api, Object, wait_until
from trainyard_lab.controlplane import ControlPlane

START_SECONDS = 60.0  # a cold import on a busy machine, then seven lists
STOP_SECONDS = 20.0
ENDLESS_LEASE = {"TRAINYARD_LEASE_SECONDS": "600", "TRAINYARD_RENEW_SECONDS": "500", "TRAINYARD_RETRY_SECONDS": "0.2"}
"""No machine is so busy that an operator loses it; whoever takes it over was given it."""
SHORT_LEASE: Mapping[str, float] = {"lease_seconds": 3, "renew_seconds": 2}
"""For an operator that is to take over from one that gave nothing back, and for one that is to notice that it was away."""
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@dataclass(slots=True)
class Operator:
    """A running operator. identity: who it is for the Lease. log: file with its JSON lines. url: of its probes and metrics."""

    identity: str
    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    def lines(self) -> list[Object]:
        """What it logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def said(self, text: str) -> bool:
        """Whether a log line's message contains this."""
        return any(text in line["message"] for line in self.lines())

    async def page(self, path: str) -> tuple[int, str]:
        """Status and text of /healthz, /readyz or /metrics; (0, "") where nobody answers."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    async def leads(self) -> bool:
        """Whether it says that it holds the Lease."""
        _, text = await self.page("/metrics")
        return "trainyard_leader 1.0" in text

    async def wait_until_leads(self, seconds: float = START_SECONDS) -> None:
        await wait_until(self.leads, bool, what=f"{self.identity} to lead", seconds=seconds)

    async def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return await self.end(signal.SIGTERM)

    async def kill(self) -> int:
        """SIGKILL: nothing is released, nobody is told."""
        return await self.end(signal.SIGKILL)

    async def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; returns the exit code (negative: killed by that signal)."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = await self.wait()
        assert code is not None
        return code

    async def wait(self, seconds: float = STOP_SECONDS) -> int | None:
        """The exit code, once it has ended."""

        async def code() -> int | None:
            return self.process.poll()

        return await wait_until(
            code, lambda ended: ended is not None, what=f"the end of {self.identity}", seconds=seconds
        )


@dataclass(slots=True)
class Operators:
    """The operators of one test, all under the chart's service account in the test's namespace.

    refusals_expected: the API server was restarted, and for a moment such a one refuses everybody everything.
    """

    api: Api
    plane: ControlPlane
    namespace: str
    folder: Path
    lease: str
    environment: dict[str, str]
    command: Sequence[str] = (sys.executable, "-m", "trainyard.cli.main", "operator")
    started: list[Operator] = field(default_factory=list)
    refusals_expected: bool = False

    async def start(self, identity: str = "", **settings: object) -> Operator:
        """Start one; returns when its caches are synced. settings: those of `controller.settings`, such as log_level="debug"."""
        identity = identity or f"operator-{len(self.started)}"
        log = self.folder / f"{identity}-{secrets.token_hex(2)}.log"
        given = {f"TRAINYARD_{name.upper()}": str(value) for name, value in settings.items()}
        process = _spawn(self.command, {**self.environment, "TRAINYARD_IDENTITY": identity, **given}, log)
        operator = Operator(identity, process, log)
        self.started.append(operator)

        async def ready() -> tuple[int, str]:
            assert process.poll() is None, f"{identity} ended with {process.poll()}:\n{log.read_text()}"
            serving = [line["message"] for line in operator.lines() if line["message"].startswith("serving")]
            if not serving:
                return 0, "does not serve yet"
            operator.url = f"http://{serving[0].rsplit(' ', 1)[1]}"
            return await operator.page("/readyz")

        await wait_until(ready, lambda page: page[0] == 200, what=f"{identity} to be ready", seconds=START_SECONDS)
        return operator

    async def leader(self, **settings: object) -> Operator:
        """Start one and wait until it leads."""
        operator = await self.start(**settings)
        await operator.wait_until_leads()
        return operator

    def refusals(self) -> list[str]:
        """What the API server refused to an operator for want of a right."""
        return [
            line["message"]
            for operator in self.started
            for line in operator.lines()
            if "is forbidden: User" in line["message"] + line.get("error", "")
        ]


def _spawn(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@asynccontextmanager
async def installed(api: Api, plane: ControlPlane, namespace: str, folder: Path) -> AsyncIterator[Operators]:
    """The chart's service account and rights in this namespace; at the end all operators are stopped, and must not have missed
    a right."""
    rendered = chart.render(name=f"op-{namespace}", namespace=namespace)
    rights = [o for o in rendered if o["kind"] in RIGHTS and not chart.is_hook(o)]
    for right in rights:
        await api.apply(right)
    (deployment,) = [o for o in rendered if o["kind"] == "Deployment"]
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    key = folder / "operator-key"
    key.write_text(secrets.token_hex(32))
    kubeconfig = folder / "operator.kubeconfig"
    kubeconfig.write_text(await kubeconfig_of(api, plane, account, namespace))
    own = {
        "TRAINYARD_NAMESPACE": namespace,
        "TRAINYARD_KEY_FILE": str(key),
        "TRAINYARD_HOST": "127.0.0.1",
        "TRAINYARD_PORT": "0",
        "KUBECONFIG": str(kubeconfig),
        **ENDLESS_LEASE,
    }
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINYARD_", "KUBERNETES_"))
    }
    operators = Operators(api, plane, namespace, folder, env["TRAINYARD_LEASE"], {**inherited, **env, **own})
    try:
        yield operators
        for operator in operators.started:
            if operator.process.poll() is None:
                code = await operator.stop()
                assert code == 0, f"{operator.identity} ended with {code}:\n{operator.log.read_text()}"
        assert operators.refusals_expected or operators.refusals() == []
    finally:
        for operator in operators.started:
            if operator.process.poll() is None:
                await operator.kill()
        for right in rights:
            await api.delete(right["kind"], right["metadata"]["name"], right["metadata"].get("namespace"))


async def kubeconfig_of(api: Api, plane: ControlPlane, account: str, namespace: str) -> str:
    """A kubeconfig with a token of this service account."""
    answer = await api.request(
        "POST",
        RESOURCES["ServiceAccount"].path(namespace, account, "token"),
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}},
    )
    cluster = {"server": plane.server, "certificate-authority": str(plane.authority.certificate_path)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": account, "user": {"token": answer["status"]["token"]}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": account, "namespace": namespace}}],
        "current-context": "test",
    }
    return yaml.safe_dump(config)
