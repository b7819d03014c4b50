"""Commands on their own, by hyperfine: starting, taking an uncontended lock, and that among many others."""

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from rig import CALLERS, CRONS, Bench, adopt_orphans, path_of

NAMES_A_CALL = 500


def start(bench):
    base = ("`flock F true`", f"{bench.flock} {bench.file} {bench.true}", "")
    others = [("`true`", bench.true, ""), ("`flock --version`", f"{bench.flock} --version", ""),
              ("`csalock --version`", f"{bench.binary} --version", "")]
    others += [(f"`csalock status`, {store}", f"{bench.binary} status --store {url}", "")
               for store, url in bench.stores.items()]
    bench.table("start", "Start-up", Bench.TIMES, bench.time(base, others), 3)


def run(bench):
    targets = {"dir": "0.80", "sqlite": "1.0" if bench.kind == "tmpfs" else "1.6"}
    base = ("`flock F true`", f"{bench.flock} {bench.file} {bench.true}", "")
    others = [(f"`csalock run-with-lock L true`, {store}", " ".join(bench.run_with(store, "L", bench.true)),
               targets[store]) for store in bench.stores]
    others.append(("`csalock run-with-lock ./file true`", f"{bench.binary} run-with-lock ./file {bench.true}", ""))
    others += [(f"`csalock run-with-lock -F L true`, {store}",
                " ".join(bench.run_with(store, "L", bench.true, options=["-F"])), "") for store in bench.stores]
    for tool, call in (("setlock", "{} {}/setlock.lock"), ("with-lock-ex", "{} -w {}/with-lock-ex.lock"),
                       ("dotlockfile", "{} -p -r 0 {}/dotlockfile.lock")):
        if bench.peers[tool]:
            shown = call.format(tool, "").replace(f"/{tool}.lock", "F")
            others.append((f"`{shown} true`", f"{call.format(bench.peers[tool], bench.place)} {bench.true}", ""))
    for name, words, environment in (("run", "the caller's environment", CALLERS),
                                     ("run-cron", "cron's environment", CRONS)):
        bench.table(name, f"Nobody else is there, {words}", Bench.TIMES, bench.time(base, others, environment), 3)


def shell(bench):
    """Taken and given back by a script, with `true` in between."""
    def script(text):
        return f"{bench.dash} -c '{text}'"

    peers, place, true = bench.peers, bench.place, bench.true
    base = ("`exec 9>F; flock 9`", script(f"exec 9>{bench.file}; {bench.flock} 9; {true}"), "")
    others = [(f"`csalock lock L`, `unlock L`, {store}",
               script(f"{bench.binary} lock --store {url} L >/dev/null; {true}; "
                      f"{bench.binary} unlock --store {url} L"), "")
              for store, url in bench.stores.items()]
    if peers["lockfile-create"]:
        create = peers["lockfile-create"]
        remove = path_of("lockfile-remove") or create.replace("-create", "-remove")
        others.append(("`lockfile-create F`, `lockfile-remove F`",
                       script(f"{create} -r 0 {place}/progs; {true}; {remove} {place}/progs"), ""))
    if peers["dotlockfile"]:
        dot = f"{peers['dotlockfile']} {{}} {place}/dot.lock"
        others.append(("`dotlockfile -l F`, `-u F`",
                       script(f"{dot.format('-l -r 0')}; {true}; {dot.format('-u')}"), ""))
    if peers["lockfile"]:
        others.append(("`lockfile F`, `rm F`", script(f"{peers['lockfile']} -r 0 {place}/procmail.lock; {true}; "
                                                      f"{path_of('rm')} -f {place}/procmail.lock"), ""))
    bench.table("shell", "From a dash script", Bench.TIMES, bench.time(base, others), 3)


class Held:
    """A store in which so many locks are held."""

    def __init__(self, bench, store, count, scratch):
        path = f"{bench.place}/{store}.{count}"
        # SQLite syncs at every lock; where it is made that costs nothing.
        made = f"{scratch}/made.{count}" if store == "sqlite" else path
        for first in range(0, count, NAMES_A_CALL):
            names = [f"held-{number}" for number in range(first, min(first + NAMES_A_CALL, count))]
            subprocess.run([bench.binary, "lock", "--store", f"{store}:{made}", "--forever", "--pid", str(os.getpid()),
                            *names], stdout=subprocess.DEVNULL, env=CALLERS, check=True)
        if made != path:
            shutil.move(made, path)
        self.bench, self.store, self.count, self.path = bench, store, count, Path(path)

    def remove(self):
        shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink()

    def row(self, command, *words):
        """For `Bench.time`."""
        call = [self.bench.binary, command, "--store", f"{self.store}:{self.path}", *words]
        return (f"csalock {command}, {self.store}, {self.count:,} held", " ".join(call),
                "" if self.count == 10 else "1.2")

    def status_of_all(self):
        """How long it takes, in seconds, and the most memory, in KiB."""
        call = [self.bench.binary, "status", "--store", f"{self.store}:{self.path}"]
        # The kernel counts what a process was before it became csalock, so that is to be a small shell and not Python;
        # and it begins when its parent has ended, so that it is we who wait for it.
        script = 'exec 3<&0; { read word <&3; exec "$@" > /dev/null; } & echo $!'
        shell = subprocess.Popen([self.bench.dash, "-c", script, "status", *call], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, env=CALLERS)
        pid = int(shell.stdout.readline())
        shell.stdout.close()
        shell.wait()
        begin = time.perf_counter()
        shell.stdin.close()
        _, _, used = os.wait4(pid, 0)
        return time.perf_counter() - begin, used.ru_maxrss


def many(bench, scratch):
    """What one lock costs among many that are held."""
    adopt_orphans()
    rows, listed = [], []
    for store in bench.stores:
        stores = [Held(bench, store, count, scratch) for count in ([10, 1_000] + [100_000] * (not bench.asked.small))]
        os.sync()  # what was written to make them is not to be waited for by those who are measured
        for words in (("run-with-lock", "L", bench.true), ("status", "held-5")):
            base, *others = [held.row(*words) for held in stores]
            rows += bench.time(base, others)
        for held in stores:
            walls, peaks = zip(*[held.status_of_all() for _ in range(bench.asked.rounds)])
            wall, peak = statistics.median(walls), statistics.median(peaks)
            listed.append([f"csalock status, {store}, {held.count:,} held", f"{wall * 1e3:.1f}",
                           f"{wall * 1e6 / held.count:.1f}", f"{peak / 1024:.1f}", ""])
            held.remove()
    bench.table("many", "One lock among many that are held", Bench.TIMES, rows, 3)
    bench.table("list", "The list of all locks", ["", "median ms", "us a lock", "peak MiB", "target"], listed, 3)
