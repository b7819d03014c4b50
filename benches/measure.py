"""Commands timed in turn, the places and environments in which they run, and the tables of the results."""

import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
HOME = str(Path.home())
UTF8 = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8"}
CRON = {"PATH": "/usr/bin:/bin", "HOME": HOME, "LOGNAME": "root", "SHELL": "/bin/sh"}
ENVIRONMENTS = {"UTF-8": UTF8, "cron": CRON}
PEERS = {"flock": "util-linux", "dash": "dash", "setlock": "daemontools", "with-lock-ex": "chiark-utils-bin",
         "lockfile": "procmail", "etcd": "etcd-server", "etcdctl": "etcd-client", "psql": "postgresql-client",
         "ssh": "openssh-client", "strace": "strace"}
QUIET = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]


def note(text):
    print(f"versus: {text}", file=sys.stderr, flush=True)


def path_of(program):
    return shutil.which(program, path=UTF8["PATH"])


def spawn(argv, environment, actions=QUIET):
    """Starts a program by its path, without a shell and without a copy of this process."""
    return os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsigdef=[signal.SIGPIPE])


def reap(pid, argv):
    """Waits for the end of a program that must succeed. Returns its resource usage."""
    _, status, used = os.wait4(pid, 0)
    if status:
        sys.exit(f"versus: {' '.join(argv)}: ended with {os.waitstatus_to_exitcode(status)}")
    return used


def in_turn(what, rounds, warm_up=0):
    """All of `what` in every round, in a different order each time. Nothing is noted of the rounds below 0."""
    shuffled, order = random.Random(1), list(what)
    for turn in range(-warm_up, rounds):
        shuffled.shuffle(order)
        yield from ((turn, each) for each in order)


def alternate(commands, rounds, warm_up=5):
    """Runs each (argv, environment) once in every round. Returns for each label its seconds, by round."""
    spans = {label: [] for label in commands}
    for turn, label in in_turn(commands, rounds, warm_up):
        argv, environment = commands[label]
        begin = time.perf_counter()
        pid = spawn(argv, environment)
        reap(pid, argv)
        if turn >= 0:
            spans[label].append(time.perf_counter() - begin)
    return spans


def ratio(spans, label, base):
    """The median of the ratios in each round."""
    return statistics.median(one / other for one, other in zip(spans[label], spans[base], strict=True))


class Tables:
    """Tables that are filled in cell by cell, and shown as Markdown; and the data of pictures, by their names."""

    def __init__(self):
        self.tables, self.pictures = {}, {}

    def cell(self, title, row, column, text):
        columns, rows = self.tables.setdefault(title, ([], {}))
        if column not in columns:
            columns.append(column)
        rows.setdefault(row, {})[column] = text

    def figure(self, row, column, value, goal, form="{:.2f}"):
        """A line of the first table. `goal` is a number, or a number for each column, or None; a miss is reported."""
        goal = goal.get(column) if isinstance(goal, dict) else goal
        if goal is not None and value > goal:
            note(f"{row}, {column}: {form.format(value)} is more than the goal, {form.format(goal)}")
        self.cell("figure", row, column, form.format(value))

    def show(self, chosen=None):
        """All tables, with that of the figures first; or these rows of the figures only."""
        lines = []
        for title, (columns, rows) in sorted(self.tables.items(), key=lambda table: table[0] != "figure"):
            if chosen is None or title == "figure":
                lines += ["", f"| {title} | " + " | ".join(columns) + " |", "|---" + "|---:" * len(columns) + "|"]
                for row in rows if chosen is None else [row for row in chosen if row in rows]:
                    lines.append(f"| {row} | " + " | ".join(rows[row].get(column, "") for column in columns) + " |")
        return "\n".join(lines)


class Place:
    """A directory on one file system, with stores in it."""

    def __init__(self, kind, path, scratch, binary, asked, tables, peers):
        self.kind, self.path, self.scratch = kind, path, scratch
        self.binary, self.asked, self.tables, self.peers, self.true = binary, asked, tables, peers, path_of("true")
        self.stores = {"directory": f"dir:{path}/store", "SQLite": f"sqlite:{path}/locks.db"}

    def rounds(self, short, complete):
        return complete if self.asked.complete else short

    def file(self, name, text=None):
        path = Path(self.path, name)
        if text is not None:
            path.write_text(text)
        return str(path)

    def run_with(self, *words):
        return [self.binary, "run", *words]

    def takers(self, *options):
        """The words before a command, and the environment, for flock and for csalock on each store."""
        found = {"flock": ([self.peers["flock"], self.file("flock")], UTF8)}
        for store, url in self.stores.items():
            found[store] = self.run_with(*options, "L"), {**UTF8, "CSALOCK_STORE": url}
        return found

    def takers_and_floor(self, *options):
        """The same, and the floor with flock(2), if it can be compiled."""
        found = self.takers(*options)
        if self.peers["floor"]:
            found["floor"] = [self.peers["floor"], "-l", self.file("flock")], UTF8
        return found


def build():
    """The binary that `cargo build --release` makes."""
    call = ["cargo", "build", "--release", "--locked", "--message-format=json-render-diagnostics"]
    done = subprocess.run(call, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("versus: csalock does not build; hint: name a binary with --binary")
    found = [json.loads(line).get("executable") for line in done.stdout.splitlines() if line.startswith("{")]
    return next(path for path in found if path and Path(path).name == "csalock")


def floor(directory):
    """Compiles the floor. Returns its path, or None without a C compiler."""
    program = str(Path(directory, "floor"))
    call = [path_of("cc") or "cc", "-O2", "-static", "-o", program, str(PROJECT / "benches/floor.c")]
    try:
        return program if subprocess.run(call).returncode == 0 else None
    except FileNotFoundError:
        return None


def places(stack, wanted):
    """A fresh directory on a disk and one in memory: (file system, path) of each."""
    def kind_of(path):
        call = ["stat", "-f", "-c", "%T", path]
        return subprocess.run(call, stdout=subprocess.PIPE, text=True).stdout.strip().replace("ext2/ext3", "ext4")

    writable = [path for path in (tempfile.gettempdir(), "/var/tmp", HOME, str(PROJECT), "/dev/shm", "/run")
                if os.access(path, os.W_OK)]
    found = {}
    for path in writable:
        found.setdefault("tmpfs" if kind_of(path) == "tmpfs" else "disk", (kind_of(path), path))
    chosen = [found[what] for what in ("disk", "tmpfs") if what in found]
    kinds = [kind for kind, _ in chosen]
    if unknown := [kind for kind in wanted or () if kind not in kinds]:
        sys.exit(f"versus: --on {unknown[0]}: there is no such directory here; KINDs are {', '.join(kinds)}")
    return [(kind, stack.enter_context(tempfile.TemporaryDirectory(prefix="versus.", dir=path)))
            for kind, path in chosen if not wanted or kind in wanted]


def machine():
    """One line about this machine."""
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    system = re.search(r'^PRETTY_NAME="?([^"\n]*)', Path("/etc/os-release").read_text(), re.MULTILINE)
    virtual = "hypervisor" in text
    return (f"{os.cpu_count()} CPUs ({model[1] if model else os.uname().machine}{', virtual' * virtual}), "
            f"{memory:.0f} GiB, Linux {os.uname().release}, {system[1] if system else 'unknown system'}")
