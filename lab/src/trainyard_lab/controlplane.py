"""The real control plane on this machine: etcd, API server, controller manager and scheduler, as plain processes.

The same class serves the lab, where the servers outlive the command that started them, and the tests, where they die
with it. All of its state is in the run directory: ``controlplane.json`` (ports and settings), ``pki``, ``etcd``,
``logs``. Starting is idempotent: what runs is left alone, what does not is started with the same ports and keys, so a
second `start` both resumes and repairs.
"""

import dataclasses
import json
import random
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from trainyard_lab import build, kwok, pki, processes
from trainyard_lab.processes import Process

LOOPBACK = "127.0.0.1"
SERVICE_NETWORK = "10.96.0.0/16"
# Always the first address of the Service network.
SERVICE_ADDRESS = "10.96.0.1"
# Below the kernel's ephemeral ports (from 32768) and NodePorts (from 30000): no connection takes one of these by chance.
PORTS = range(20000, 30000)
READY_SECONDS = 60
# Each server is asked to end in the reverse of this order. The API server must go before etcd: with
# etcd gone it hangs in its shutdown and keeps its port.
ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
)
START_ORDER = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK)


@dataclass(frozen=True, slots=True)
class Settings:
    """What differs between one control plane and another.

    bind_address: where the API server listens; 0.0.0.0 in the lab, whose nodes reach it over a bridge.
    advertise_address: how nodes and, through the Service ``kubernetes``, pods reach it.
    node_grace_seconds: a node that is silent for so long is Unknown. Kubelets renew their lease every 10 s; Kubernetes' own
        default is 50.
    with_kwok: also run kwok, for nodes annotated as kwok.annotate says.
    """

    bind_address: str = LOOPBACK
    advertise_address: str = LOOPBACK
    node_grace_seconds: int = 40
    with_kwok: bool = False


@dataclass(frozen=True, slots=True)
class Ports:
    api_server: int
    etcd_client: int
    etcd_peer: int


class ControlPlane:
    """A control plane and its run directory.

    run_dir: where everything is kept; made if missing.
    dies_with_parent: the servers are killed by the kernel when this process ends, however it ends.
    As a context manager it starts, and at the end stops and forgets what etcd held; logs stay for whoever looks into a failure.
    """

    def __init__(self, run_dir: Path, settings: Settings | None = None, *, dies_with_parent: bool = False) -> None:
        self.run_dir = run_dir.resolve()
        self.dies_with_parent = dies_with_parent
        self.settings, self.ports = self._recall(settings)

    # ---- what clients need ----

    @property
    def server(self) -> str:
        """URL of the API server for clients on this machine."""
        return f"https://{LOOPBACK}:{self.ports.api_server}"

    @property
    def advertised_server(self) -> str:
        """The same as its nodes see it."""
        return f"https://{self.settings.advertise_address}:{self.ports.api_server}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.run_dir / "admin.kubeconfig"

    @property
    def authority(self) -> pki.Authority:
        """The authority that the API server trusts, and that signed its certificate."""
        return pki.authority(self.run_dir / "pki")

    def write_kubeconfig(self, path: Path, identity: pki.Identity, *, server: str | None = None) -> Path:
        """A kubeconfig for this identity; `server` where the API server is not reached at the loopback address."""
        return pki.write_kubeconfig(path, server or self.server, self.authority, identity)

    def ssl_context(self) -> ssl.SSLContext:
        """For HTTPS to the API server as the administrator."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate_path))
        context.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
        return context

    # ---- life ----

    def start(self) -> None:
        """Start what does not run; returns when the API server is ready and its clients have been started."""
        programs = self._programs()
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._remember()
        self._make_certificates()
        running = processes.find(self.run_dir)
        for name in START_ORDER:
            command = self._commands(programs).get(name)
            if command is None:
                continue
            if name not in running:
                running[name] = processes.start(self.run_dir, name, command, dies_with_parent=self.dies_with_parent)
            if name == API_SERVER:
                processes.wait_until(
                    self._answers,
                    "the API server's /readyz",
                    deadline_seconds=READY_SECONDS,
                    needs=(running[ETCD], running[API_SERVER]),
                )

    def stop(self, *, grace_seconds: float = 10) -> None:
        """Stop the servers, the API server before etcd. What is not there is not missed."""
        running = self.running()
        for name in reversed(START_ORDER):
            if name in running:
                processes.stop(running[name], grace_seconds)

    def stop_server(self, name: str, *, grace_seconds: float = 10) -> None:
        """Stop one server, to see how others bear it; `start` brings it back on the same port."""
        if process := self.running().get(name):
            processes.stop(process, grace_seconds)

    def running(self) -> dict[str, Process]:
        """The servers that are alive, by name."""
        return {name: found for name, found in processes.find(self.run_dir).items() if name in START_ORDER}

    def is_ready(self) -> bool:
        """Whether the API server answers /readyz, and all servers of these settings are alive."""
        expected = [name for name in START_ORDER if name != KWOK or self.settings.with_kwok]
        return set(expected) <= set(self.running()) and self._answers()

    def remove(self) -> None:
        """Stop everything and remove the run directory."""
        self.stop()
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop(grace_seconds=1)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(grace_seconds=2)
        shutil.rmtree(self.run_dir / "etcd", ignore_errors=True)

    # ---- inside ----

    @property
    def _pki(self) -> Path:
        return self.run_dir / "pki"

    @property
    def _state(self) -> Path:
        return self.run_dir / "controlplane.json"

    def _recall(self, settings: Settings | None) -> tuple[Settings, Ports]:
        """Ports and settings of the run directory's earlier life, if it had one: its nodes know them."""
        if self._state.exists():
            state = json.loads(self._state.read_text())
            return settings or Settings(**state["settings"]), Ports(**state["ports"])
        return settings or Settings(), Ports(*_free_ports(3))

    def _remember(self) -> None:
        state = {"settings": dataclasses.asdict(self.settings), "ports": dataclasses.asdict(self.ports)}
        unfinished = self._state.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(state, indent=1) + "\n")
        unfinished.rename(self._state)

    def _programs(self) -> Mapping[str, Path]:
        families = (build.KUBE, build.ETCD, *([build.KWOK] if self.settings.with_kwok else []))
        return build.build_all(families)

    def _make_certificates(self) -> None:
        if self.kubeconfig.exists():
            return
        authority = self.authority
        addresses = {LOOPBACK, SERVICE_ADDRESS, self.settings.advertise_address}
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        authority.serving("kube-apiserver", names=["localhost", *names], addresses=sorted(addresses)).save(
            self._pki, "apiserver"
        )
        authority.client(pki.ADMIN).save(self._pki, "admin")
        pki.service_account_key(self._pki)
        for name, identity in ((CONTROLLER_MANAGER, pki.CONTROLLER_MANAGER), (SCHEDULER, pki.SCHEDULER)):
            self.write_kubeconfig(self._client(name), identity)
        # The last: where it exists, the others do.
        self.write_kubeconfig(self.kubeconfig, pki.ADMIN)

    def _client(self, name: str) -> Path:
        return self.run_dir / f"{name}.kubeconfig"

    def _commands(self, programs: Mapping[str, Path]) -> dict[str, Sequence[str | Path]]:
        authority = self.authority.certificate_path
        etcd_url = f"http://{LOOPBACK}:{self.ports.etcd_client}"
        peer_url = f"http://{LOOPBACK}:{self.ports.etcd_peer}"
        # Their defaults (20 to 50 requests a second) would be what a test of many pods measures.
        unhurried = ("--kube-api-qps=1000", "--kube-api-burst=2000")
        commands: dict[str, Sequence[str | Path]] = {
            ETCD: (
                programs["etcd"],
                "--name=lab",
                f"--data-dir={self.run_dir / 'etcd'}",
                f"--listen-client-urls={etcd_url}",
                f"--advertise-client-urls={etcd_url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster=lab={peer_url}",
                # A lab does not outlive its machine; without this every write waits for the disk.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ),
            API_SERVER: (
                programs["kube-apiserver"],
                f"--etcd-servers={etcd_url}",
                f"--bind-address={self.settings.bind_address}",
                f"--secure-port={self.ports.api_server}",
                f"--advertise-address={self.settings.advertise_address}",
                # The Service `kubernetes` cannot point to a loopback address; there nobody needs it either.
                *(["--endpoint-reconciler-type=none"] if self.settings.advertise_address == LOOPBACK else []),
                f"--service-cluster-ip-range={SERVICE_NETWORK}",
                f"--tls-cert-file={self._pki / 'apiserver.crt'}",
                f"--tls-private-key-file={self._pki / 'apiserver.key'}",
                f"--client-ca-file={authority}",
                f"--cert-dir={self._pki}",
                f"--kubelet-client-certificate={self._pki / 'admin.crt'}",
                f"--kubelet-client-key={self._pki / 'admin.key'}",
                "--kubelet-preferred-address-types=InternalIP",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                f"--service-account-key-file={self._pki / 'service-account.pub'}",
                f"--service-account-signing-key-file={self._pki / 'service-account.key'}",
                "--profiling=false",
            ),
            CONTROLLER_MANAGER: (
                programs["kube-controller-manager"],
                f"--kubeconfig={self._client(CONTROLLER_MANAGER)}",
                f"--service-account-private-key-file={self._pki / 'service-account.key'}",
                f"--root-ca-file={authority}",
                "--use-service-account-credentials",
                "--leader-elect=false",
                "--secure-port=0",
                f"--node-monitor-grace-period={self.settings.node_grace_seconds}s",
                *unhurried,
            ),
            SCHEDULER: (
                programs["kube-scheduler"],
                f"--kubeconfig={self._client(SCHEDULER)}",
                "--leader-elect=false",
                "--secure-port=0",
                *unhurried,
            ),
        }
        if self.settings.with_kwok:
            commands[KWOK] = kwok.command(programs["kwok"], self.kubeconfig)
        return commands

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.server}/readyz", timeout=5, context=self.ssl_context()) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _free_ports(count: int) -> list[int]:
    """Ports on which nobody listens, at random, so that two runs at once hardly ever want the same."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(found) == count:
            return found
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            found.append(port)
    raise OSError(f"there are no {count} free TCP ports in {PORTS.start} to {PORTS.stop - 1}")
