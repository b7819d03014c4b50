"""An uncontended lock on servers: PostgreSQL, and a host that is reached by ssh."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from alone import OURS
from measure import UTF8, alternate, ratio

SSHD = "/usr/sbin/sshd"


@contextlib.contextmanager
def postgres_server(place):
    """A server with its data in this place, for the user test. Its port, once it answers."""
    bin_ = next(Path("/usr/lib/postgresql").glob("*/bin"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    directory = Path(place.file("postgres"))
    directory.mkdir()
    # It refuses to run as root.
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
    if words:
        for above in (directory.parent, directory):
            os.chmod(above, 0o755)
        os.chown(directory, 65534, 65534)
    data, quiet = directory / "data", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": UTF8}
    subprocess.run([*words, bin_ / "initdb", "-A", "trust", "-U", "test", "-D", data], check=True, **quiet)
    server = subprocess.Popen([*words, bin_ / "postgres", "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1",
                               "-c", f"unix_socket_directories={directory}"], **quiet)
    limit = time.monotonic() + 60
    try:
        while subprocess.run([bin_ / "pg_isready", "-q", "-h", "127.0.0.1", "-p", port], **quiet).returncode:
            if time.monotonic() > limit:
                sys.exit("versus: PostgreSQL does not answer after a minute")
            time.sleep(0.1)
        yield port
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
        shutil.rmtree(directory)


def postgres(place):
    """An uncontended lock in PostgreSQL."""
    if not place.peers["psql"] or not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        return
    with postgres_server(place) as port:
        words = ["-h", "127.0.0.1", "-p", port, "-U", "test", "-d", "postgres", "-q"]
        words += ["-c", "select pg_advisory_lock(1)", "-c", r"\! true"]
        # Debian's psql is a script that finds the program.
        program = str(next(Path("/usr/lib/postgresql").glob("*/bin/psql")))
        url = f"postgres://test@127.0.0.1:{port}/postgres"
        spans = alternate({"psql": ([place.peers["psql"], *words], UTF8), "program": ([program, *words], UTF8),
                           "csalock": (place.run_with("L", place.true), {**UTF8, "CSALOCK_STORE": url})},
                          place.rounds(30, 200))
    peer = "`psql -c 'select pg_advisory_lock(1)' -c '\\! true'`"
    place.tables.figure(f"{OURS}, PostgreSQL / {peer}", place.kind, ratio(spans, "csalock", "psql"), 0.5)
    place.tables.figure(f"{OURS}, PostgreSQL / the same by psql's program, without Debian's script", place.kind,
                        ratio(spans, "csalock", "program"), None)


@contextlib.contextmanager
def ssh_server(place):
    """An sshd, and a connection to it that all clients share. A program in place of ssh(1), and the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    directory = Path(tempfile.mkdtemp(prefix="versus.", dir="/tmp"))
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": UTF8}
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / key], check=True, **quiet)
    (directory / "known").write_text(f"[127.0.0.1]:{port} {(directory / 'host.pub').read_text()}")
    (directory / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {directory}/host\nAuthorizedKeysFile {directory}/user.pub\n"
        "PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nUseDNS no\n"
        f"SetEnv PATH={Path(place.binary).parent}:/usr/bin:/bin\n")
    (directory / "ssh_config").write_text(
        f"Port {port}\nIdentityFile {directory}/user\nIdentitiesOnly yes\nUserKnownHostsFile {directory}/known\n"
        f"GlobalKnownHostsFile none\nControlPath {directory}/control\n")
    program = directory / "ssh"
    program.write_text(f'#!/bin/sh\nexec {place.peers["ssh"]} -F {directory}/ssh_config "$@"\n')
    program.chmod(0o755)
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    servers = [subprocess.Popen([SSHD, "-D", "-f", directory / "sshd_config"], **quiet)]
    limit = time.monotonic() + 60
    try:
        while not (directory / "control").exists():
            if servers[-1].poll() is not None or len(servers) == 1:
                servers.append(subprocess.Popen([program, "-M", "-N", "127.0.0.1"], **quiet))
            if time.monotonic() > limit:
                sys.exit("versus: sshd does not answer after a minute")
            time.sleep(0.2)
        yield str(program), port
    finally:
        for server in reversed(servers):
            server.kill()
            server.wait()
        shutil.rmtree(directory)


def ssh(place):
    """An uncontended lock over ssh, on a connection that lasts (ControlMaster)."""
    if not place.peers["ssh"] or not os.path.exists(SSHD):
        return
    with ssh_server(place) as (program, port):
        url = f"ssh://127.0.0.1:{port}{place.file('over-ssh')}"
        environment = {**UTF8, "CSALOCK_SSH": program, "CSALOCK_STORE": url}
        spans = alternate({"ssh": ([program, "127.0.0.1", "true"], UTF8),
                           "csalock": (place.run_with("L", place.true), environment)}, place.rounds(30, 200))
    place.tables.figure(f"{OURS} over ssh / `ssh HOST true`, both with ControlMaster", place.kind,
                        ratio(spans, "csalock", "ssh"), 1.6)
