"""What all measurements stand on: where they are made, what is compared with what, and how tables are shown."""

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import picture

PROJECT = Path(__file__).resolve().parent.parent
STATIC = "x86_64-unknown-linux-musl"
CALLERS = {name: value for name, value in os.environ.items() if not name.startswith("CSALOCK_")}
CRONS = {"PATH": "/usr/bin:/bin"}
WARM_UP, RUNS = 10, 60  # of a command in each round


def say(text=""):
    print(text, flush=True)


def path_of(tool):
    return shutil.which(tool, path="/usr/bin:/bin:" + os.environ.get("PATH", ""))


def present(tool, package):
    found = path_of(tool)
    if not found:
        say(f"- left out: `{tool}` is not here (Debian: {package})")
    return found


def build():
    """The binary that the README's install command produces, or else the nearest to it."""
    base = ["cargo", "build", "--release", "--locked", "--message-format=json-render-diagnostics"]
    for extra in (["--target", STATIC], []):
        try:
            done = subprocess.run(base + extra, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            sys.exit("versus: no cargo here; name a binary")
        if done.returncode == 0:
            found = [json.loads(line).get("executable") for line in done.stdout.splitlines() if line.startswith("{")]
            return next(path for path in found if path and Path(path).name == "csalock")
        if extra:
            say(f"- no static binary: the build for {STATIC} failed; measuring a dynamic one instead")
    sys.exit("versus: csalock does not build")


def file_system(path):
    return subprocess.run(["stat", "-f", "-c", "%T", path], stdout=subprocess.PIPE, text=True).stdout.strip()


def places(stack):
    """Fresh directories on a disk and in memory, each with the name of its file system."""
    on_disk = [path for path in (tempfile.gettempdir(), "/var/tmp", str(Path.home()), str(PROJECT))
               if os.access(path, os.W_OK) and file_system(path) not in ("tmpfs", "ramfs", "overlayfs")]
    in_memory = [path for path in ("/dev/shm", "/run") if os.access(path, os.W_OK) and file_system(path) == "tmpfs"]
    found = []
    for candidates, what in ((on_disk, "on a disk"), (in_memory, "on tmpfs")):
        if candidates:
            kind = file_system(candidates[0]).replace("ext2/ext3", "ext4")
            found.append((kind, stack.enter_context(tempfile.TemporaryDirectory(prefix="versus.", dir=candidates[0]))))
        else:
            say(f"- left out: no writable directory {what}")
    return found


def adopt_orphans():
    """From now on those whose parents end before them are our children: what they used can be asked."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Bench:
    """One binary beside its peers, in one place."""

    def __init__(self, binary, peers, kind, place, asked):
        self.binary, self.peers, self.kind, self.place, self.asked = binary, peers, kind, place, asked
        self.true, self.dash, self.flock = path_of("true"), path_of("dash") or "/bin/sh", peers["flock"]
        self.stores = {"dir": f"dir:{place}/store", "sqlite": f"sqlite:{place}/locks.db"}
        self.file = f"{place}/flock.lock"
        # What is created once is not what is measured.
        for store in list(self.stores):
            tried = subprocess.run(self.run_with(store, "L", self.true), stderr=subprocess.PIPE, text=True)
            if tried.returncode:
                say(f"- left out on {kind}: store {store}: {tried.stderr.strip()}")
                del self.stores[store]

    def run_with(self, store, name, *command, options=()):
        return [self.binary, "run-with-lock", "--store", self.stores[store], *options, name, *command]

    def tools(self, lock="L", options=()):
        """How each tool runs a command under a lock that others want."""
        found = {"flock": [self.flock, f"{self.file}.{lock}"]}
        found.update({f"csalock, {store}": self.run_with(store, lock, options=options) for store in self.stores})
        return found

    def in_turn(self, tools):
        """All tools in every round, each time another one first."""
        for turn in range(self.asked.rounds):
            order = list(tools)
            yield from order[turn % len(order):] + order[:turn % len(order)]

    def table(self, name, title, head, rows, bar, how=""):
        """Shows a table, whose column `bar` is what its picture shows. The last column is a target."""
        say(f"**{title}, {self.kind}** ({how or f'{self.asked.rounds} rounds'})\n")
        say("| " + " | ".join(head) + " |")
        say("|---" + "|---:" * (len(head) - 1) + "|")
        for row in rows:
            say("| " + " | ".join(row) + " |")
        say()
        if self.asked.svg and rows:
            def number(word):
                return float(word.split()[0].replace(",", ""))

            bars = [(row[0].replace("`", ""), number(row[bar]), row[bar], number(row[-1]) if row[-1] else None,
                     "csalock" in row[0]) for row in rows]
            subtitle = head[bar] + ("; the mark is the target" if any(row[-1] for row in rows) else "")
            path = Path(self.asked.svg) / f"{name}-{self.kind}.svg"
            path.write_text(picture.draw(f"{title}, {self.kind}", subtitle, bars))

    TIMES = ["", "median ms", "min ms", "ratio of medians", "of minima", "target"]

    def time(self, base, others, environment=CALLERS):
        """`base` and `others` are (label, command, target): base first and last; ratios are to the mean of both.
        Returns rows under the head TIMES."""
        commands = [base, *others, base]
        report = f"{self.place}/hyperfine.json"
        call = [path_of("hyperfine"), "-N", "--warmup", str(WARM_UP), "--runs", str(RUNS), "--style", "none",
                "--export-json", report, *(command for _, command, _ in commands)]
        times, ratios, minima = ([[] for _ in commands] for _ in range(3))
        for _ in range(self.asked.rounds):
            done = subprocess.run(call, cwd=self.place, env=environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
            if done.returncode:
                say(f"- left out: {base[0]} and others: {done.stderr.strip().splitlines()[-1:]}")
                return []
            results = json.loads(Path(report).read_text())["results"]
            means = [(results[0][what] + results[-1][what]) / 2 for what in ("median", "min")]
            for at, result in enumerate(results):
                times[at] += result["times"]
                ratios[at].append(result["median"] / means[0])
                minima[at].append(result["min"] / means[1])
        # The base's two rows are one: its ratio is 1 by definition.
        times[0] += times.pop()
        return [[label, f"{statistics.median(spans) * 1e3:.3f}", f"{min(spans) * 1e3:.3f}",
                 f"{statistics.median(medians):.2f}", f"{statistics.median(least):.2f}", target]
                for (label, _, target), spans, medians, least in
                zip(commands, times, [[1.0], *ratios[1:-1]], [[1.0], *minima[1:-1]])]
