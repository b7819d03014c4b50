"""What a single caller needs: time to flock's and its peers', system calls, page faults, memory, size."""

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measure import ENVIRONMENTS, UTF8, alternate, path_of, ratio, reap, spawn

NAMES_A_CALL, FEW, MANY = 500, 10, 100_000
REPEATED = 20  # runs of which the median counts
FLOCK, OURS, IN_PLACE = "`flock F true`", "`csalock run L true`", "`csalock run -F L true`"
IN_SQLITE = "`csalock run L true`, SQLite"


def compare(place, title, commands, base, rounds):
    """Times commands in each environment and shows their ratios to `base`. Returns the seconds of each."""
    spans = {}
    for name, environment in ENVIRONMENTS.items():
        calls = {label: (argv, {**environment, **more}) for label, (argv, more) in commands.items()}
        spans[name] = alternate(calls, rounds)
        for label in calls:
            median = statistics.median(spans[name][label]) * 1e3
            text = f"{median:.2f} ms" if label == base else f"{ratio(spans[name], label, base):.2f}"
            place.tables.cell(title, label, f"{place.kind}, {name}", text)
    return spans


def run(place):
    """An uncontended lock around /usr/bin/true."""
    peers, true, rounds = place.peers, place.true, place.rounds(100, 600)
    stores = {store: {"CSALOCK_STORE": url} for store, url in place.stores.items()}
    commands = {FLOCK: ([peers["flock"], place.file("flock"), true], {}),
                OURS: (place.run_with("L", true), stores["directory"]),
                # A lock of its own: the next caller finds out that this one has ended, which takes longer.
                IN_PLACE: (place.run_with("-F", "K", true), stores["directory"])}
    others = {"setlock": ("`setlock F true`", []), "with-lock-ex": ("`with-lock-ex -w F true`", ["-w"])}
    for peer, (label, options) in others.items():
        if peers[peer]:
            commands[label] = [peers[peer], *options, place.file(peer), true], {}
    if peers["floor"]:
        commands["floor: vfork, exec, wait"] = [peers["floor"], true], {}
    title, setlock = "uncontended, relative to `flock F true`", others["setlock"][0]
    spans = compare(place, title, commands, FLOCK, rounds)
    # Its syncs disturb the commands after them, so SQLite has rounds of its own.
    with_sqlite = {FLOCK: commands[FLOCK], IN_SQLITE: (commands[OURS][0], stores["SQLite"])}
    synced = compare(place, title, with_sqlite, FLOCK, rounds)
    figure = place.tables.figure
    for name, goal in (("UTF-8", 1.25), ("cron", 1.45)):
        figure(f"{OURS} / {FLOCK}, {name}", place.kind, ratio(spans[name], OURS, FLOCK), goal)
    if peers["setlock"]:
        for name in ENVIRONMENTS:
            figure(f"{IN_PLACE} / {setlock}, {name}", place.kind, ratio(spans[name], IN_PLACE, setlock), 1.25)
    for name, goal in (("UTF-8", {"ext4": 1.50, "tmpfs": 1.40}), ("cron", None)):
        figure(f"{IN_SQLITE} / {FLOCK}, {name}", place.kind, ratio(synced[name], IN_SQLITE, FLOCK), goal)


def script(place):
    """A lock that a dash script acquires and releases."""
    flock, ours = "`exec 9>F; flock 9`", "`csalock lock L; csalock unlock L`"
    texts = {flock: f"exec 9>{place.file('flock')}\n{place.peers['flock']} 9\n"}
    for store in place.stores:
        label = ours if store == "directory" else f"{ours}, {store}"
        texts[label] = f"{place.binary} lock L\n{place.binary} unlock L\n"
    if place.peers["lockfile"]:
        lock = place.file("lockfile")
        texts["`lockfile F; rm -f F`"] = f"{place.peers['lockfile']} {lock}\n{path_of('rm')} -f {lock}\n"
    commands = {}
    for number, (label, text) in enumerate(texts.items()):
        more = {"CSALOCK_STORE": place.stores["SQLite" if label.endswith("SQLite") else "directory"]}
        commands[label] = [place.peers["dash"], place.file(f"script{number}", text)], more
    spans = compare(place, f"from a dash script, relative to {flock}", commands, flock, place.rounds(60, 400))
    for name, goal in (("UTF-8", 1.40), ("cron", None)):
        place.tables.figure(f"{ours} / {flock}, dash script, {name}", place.kind, ratio(spans[name], ours, flock), goal)


@contextlib.contextmanager
def cluster(place, count):
    """Servers of etcd with their data in this place. Their client addresses, once they answer."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2 * count)]
        ports = [each.getsockname()[1] for each in sockets]
    clients = [f"127.0.0.1:{port}" for port in ports[:count]]
    peers = [f"http://127.0.0.1:{port}" for port in ports[count:]]
    everyone = ",".join(f"n{number}={peer}" for number, peer in enumerate(peers))
    servers, directories = [], [place.file(f"etcd.{count}.{number}") for number in range(count)]
    for number, (client, peer, directory) in enumerate(zip(clients, peers, directories, strict=True)):
        servers.append(subprocess.Popen(
            [place.peers["etcd"], "--name", f"n{number}", "--data-dir", directory,
             "--listen-client-urls", f"http://{client}", "--advertise-client-urls", f"http://{client}",
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", everyone],
            env=UTF8, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    health = [place.peers["etcdctl"], f"--endpoints={','.join(clients)}", "endpoint", "health"]
    limit = time.monotonic() + 60
    try:
        while subprocess.run(health, env=UTF8, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            if time.monotonic() > limit:
                sys.exit("versus: etcd does not answer after a minute")
            time.sleep(0.2)
        yield clients
    finally:
        for server in servers:
            server.kill()
            server.wait()
        for directory in directories:
            shutil.rmtree(directory)


def etcd(place):
    """An uncontended lock in etcd."""
    if not place.peers["etcd"] or not place.peers["etcdctl"]:
        return
    for count, goal in ((1, 0.40), (3, 0.50)):
        with cluster(place, count) as clients:
            ctl = [place.peers["etcdctl"], f"--endpoints={','.join(clients)}", "lock", "L", place.true]
            url = f"etcd://{','.join(clients)}/versus"
            spans = alternate({"etcdctl": (ctl, {**UTF8, "ETCDCTL_API": "3"}),
                               "csalock": (place.run_with("L", place.true), {**UTF8, "CSALOCK_STORE": url})},
                              place.rounds(30, 200))
        nodes = "one node" if count == 1 else "three nodes"
        place.tables.figure(f"{OURS}, etcd / `etcdctl lock L true`, {nodes}", place.kind,
                            ratio(spans, "csalock", "etcdctl"), goal)


def held(place):
    """An uncontended lock among names that are held."""
    kept = subprocess.Popen(["/bin/sleep", "infinity"])
    try:
        for store, url in place.stores.items():
            calls = {}
            for count in (FEW, MANY):
                scheme, path = url.partition(":")[0], place.file(f"{store}.{count}")
                # SQLite syncs each lock. In memory that takes no time, and the file can be moved.
                made = f"{place.scratch}/made" if store == "SQLite" else path
                environment = {**UTF8, "CSALOCK_STORE": f"{scheme}:{made}"}
                for first in range(0, count, NAMES_A_CALL):
                    names = [f"held-{number}" for number in range(first, min(first + NAMES_A_CALL, count))]
                    call = [place.binary, "lock", "--forever", "--pid", str(kept.pid), *names]
                    reap(spawn(call, environment), call)
                if made != path:
                    shutil.move(made, path)
                calls[count] = place.run_with("L", place.true), {**UTF8, "CSALOCK_STORE": f"{scheme}:{path}"}
            os.sync()  # The commands do not wait for what was written before them.
            spans = alternate(calls, place.rounds(100, 600))
            place.tables.figure(f"{OURS} among {MANY:,} held names / among {FEW}, {store}", place.kind,
                                ratio(spans, MANY, FEW), 1.05 if store == "directory" else None)
    finally:
        kept.kill()
        kept.wait()


def calls_of(place, words, environment):
    """The system calls of a command and its processes, each up to the program that it executes."""
    log = place.file("calls")
    call = [place.peers["strace"], "-f", "-qq", "-e", "signal=none", "-o", log, *words]
    reap(spawn(call, environment), call)
    calls, first = 0, {}
    for line in Path(log).read_text().splitlines():
        pid, _, rest = line.partition(" ")
        executes = "execve(" in rest
        # The first call of all executes csalock; after one of its processes has executed the command it is not ours.
        if not first:
            first[pid] = True
        elif first.setdefault(pid, True) and "resumed>" not in rest and not rest.strip().startswith("+++"):
            calls += 1
            first[pid] = not executes
    return calls


def counts(place):
    """System calls and page faults, which do not depend on the load of the machine."""
    for store, url in place.stores.items():
        environment = {**UTF8, "CSALOCK_STORE": url}
        words = place.run_with("L", place.true)
        reap(spawn(words, environment), words)
        is_first = store == "directory"
        if place.peers["strace"]:
            # Some runs with SQLite write the log into the database, which takes more calls.
            calls = statistics.median(calls_of(place, words, environment) for _ in range(REPEATED))
            place.tables.figure(f"own system calls of {OURS}, {store}", place.kind, calls,
                                75 if is_first else 150, "{:.0f}")
        used = [reap(spawn(words, environment), words) for _ in range(REPEATED)]
        faults = statistics.median(each.ru_minflt + each.ru_majflt for each in used)
        place.tables.figure(f"page faults of the whole run, {store}", place.kind, faults,
                            110 if is_first else None, "{:.0f}")


def size(place):
    """The size of the program."""
    place.tables.figure("size of the binary, MB", place.kind, os.path.getsize(place.binary) / 1e6, 6, "{:.1f}")
