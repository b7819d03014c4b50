//! Stores that other hosts may share: a lock lasts while its owner lives, by leases that a keeper renews.

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::proc::{children, lives, private_kibibytes, stat_field};
use crate::sandbox::{Call, Job, Kind, Sandbox, has_namespaces, skip, wait_until};
use store::Call as StoreCall;

/// Short, but long enough for a machine that has other things to do.
const LEASE: &str = "5s";

fn csalock<'a>(sandbox: &'a Sandbox, words: &[&str]) -> Call<'a> {
    sandbox.csalock(words).env("CSALOCK_LEASE", LEASE)
}

fn script<'a>(sandbox: &'a Sandbox, text: &str) -> Call<'a> {
    sandbox.script("dash", text).env("CSALOCK_LEASE", LEASE)
}

/// Until when the one holder's lease was renewed, if there is one.
fn renewed_until(sandbox: &Sandbox, name: &str) -> Option<String> {
    sandbox.sight(name)["holders"][0]["renewed_until"].as_str().map(str::to_string)
}

#[track_caller]
fn await_renewals(sandbox: &Sandbox, name: &str, times: usize) {
    for _ in 0..times {
        let before = renewed_until(sandbox, name);
        assert!(before.is_some(), "{}", sandbox.sight(name));
        wait_until("the lease is renewed", || renewed_until(sandbox, name) != before);
        assert!(renewed_until(sandbox, name).is_some(), "{}", sandbox.sight(name));
    }
}

/// The keepers that renew in this sandbox, which its environment tells.
pub(crate) fn keepers(sandbox: &Sandbox) -> Vec<i32> {
    let store = format!("CSALOCK_STORE={}", sandbox.store());
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_keeper = |pid: &i32| {
        let read = |what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        read("comm") == b"csalock-keeper\n"
            && read("environ").split(|byte| *byte == 0).any(|set| set == store.as_bytes())
    };
    processes.filter(|pid| lives(*pid) && is_keeper(pid)).collect()
}

#[track_caller]
fn the_keeper(sandbox: &Sandbox) -> i32 {
    // A process may be passed over while others come and go.
    let mut found = Vec::new();
    wait_until("there is a keeper", || {
        found = keepers(sandbox);
        found.len() == 1
    });
    found[0]
}

/// A job with a slot whose command has succeeded while its supervisor was stopped.
fn job_with_stopped_supervisor(sandbox: &Sandbox) -> Job {
    let (mut job, command) = running(sandbox, &["--once-per=99999d"]);
    send(job.pid(), Signal::SIGSTOP);
    job.release();
    wait_until("the command has ended", || !lives(command));
    job
}

/// A command that holds the lock until its stdin ends, its supervisor, and its pid.
fn running(sandbox: &Sandbox, options: &[&str]) -> (Job, i32) {
    let words = [&["run"], options, &["x", "dash", "-c", "echo $$; cat; :"]].concat();
    let mut job = csalock(sandbox, &words).spawn();
    let pid = job.lines(1)[0].parse().unwrap();
    (job, pid)
}

/// The same under a shell that goes on: the kernel continues a stopped command whose process group has lost its last
/// parent.
fn with_a_parent(sandbox: &Sandbox, words: &str) -> (Job, i32) {
    let mut job = script(sandbox, &format!("{words}; cat; :")).spawn();
    let pid = job.lines(1)[0].parse().unwrap();
    (job, pid)
}

fn parent_of(pid: i32) -> i32 {
    crate::sandbox::proc::stat(pid).unwrap().1
}

/// Kills supervisor and keeper. The supervisor comes first, or else it would start another keeper.
fn kill_csalock(supervisor: i32, keeper: i32) {
    for pid in [supervisor, keeper] {
        send(pid, Signal::SIGKILL);
        wait_until("it has ended", || !lives(pid));
    }
}

fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

fn is_stopped(pid: i32) -> bool {
    crate::sandbox::proc::stat(pid).is_some_and(|(state, _)| state == 'T')
}

/// A stopped thread that stays stopped until the drop, even if its process is continued.
struct Traced(Pid);

impl Traced {
    fn new(thread: i32) -> Option<Traced> {
        let thread = Pid::from_raw(thread);
        match ptrace::seize(thread, ptrace::Options::empty()) {
            Ok(()) => Some(Traced(thread)),
            Err(errno) => {
                skip("a thread that stands still", &format!("ptrace(2): {}", errno.desc()));
                None
            }
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}

fn threads(pid: i32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// The number of times that the thread has waited for something.
fn voluntary_switches(pid: i32, thread: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    count.trim().parse().unwrap()
}

/// Stops these processes, as a machine that sleeps does, until the lease of lock x is long over.
fn sleep_beyond_the_lease(sandbox: &Sandbox, processes: &[i32]) {
    await_renewals(sandbox, "x", 1);
    processes.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
    let until = renewed_until(sandbox, "x").unwrap();
    let earlier = || std::time::UNIX_EPOCH.elapsed().unwrap() - std::time::Duration::from_secs(2);
    wait_until("the lease is over", || lock::duration::rfc3339_millis(earlier()) > until);
}

on_every_shared_store! {
    fn a_record_that_cannot_be_read_does_not_end_the_lease_of_another_lock(sandbox: &Sandbox) {
        let _job = script(sandbox, "csalock lock x y; echo; cat; :").ready();
        sandbox.overwrite("x", b"no record");
        // A keeper without an answer gives up four leases after the end of the last one.
        await_renewals(sandbox, "y", 17);
    }

    fn a_lock_outlasts_its_first_lease_as_long_as_its_owner_lives(sandbox: &Sandbox) {
        let _job = script(sandbox, "csalock lock x y; echo; cat; :").ready();
        await_renewals(sandbox, "x", 4);
        assert_eq!(sandbox.state("y"), "held");
        csalock(sandbox, &["lock", "-qn", "y"]).status(75).run();
        assert_eq!(keepers(sandbox).len(), 1, "one keeper for both");
    }

    fn a_lease_is_renewed_once_each_third_of_its_duration(sandbox: &Sandbox) {
        let _job = script(sandbox, "csalock lock x; echo; cat; :").ready();
        let version = || sandbox.open().read(StoreCall::default(), b"x").unwrap().map(|stored| stored.version);
        await_renewals(sandbox, "x", 1);
        let (first, begun) = (version(), std::time::Instant::now());
        let mut changes = 0;
        while changes < 3 {
            let before = version();
            wait_until("it changes", || version() != before);
            changes += 1;
        }
        assert!(version() != first);
        // Three thirds of five seconds, less what the first look was late.
        assert!(begun.elapsed() > std::time::Duration::from_secs(3), "{:?}", begun.elapsed());
    }

    fn a_keeper_sees_its_owner_die(sandbox: &Sandbox) {
        let mut job = script(sandbox, "csalock lock x; echo; cat; :").ready();
        let keeper = the_keeper(sandbox);
        job.kill();
        wait_until("the keeper has ended", || !lives(keeper));
        assert_eq!(sandbox.state("x"), "free");
        csalock(sandbox, &["run", "-n", "x", "true"]).run();
    }

    fn a_keeper_ends_some_time_after_its_store_is_gone(sandbox: &Sandbox) {
        require!(sandbox.is_of_files());
        let job = script(sandbox, "csalock lock x; echo; cat; :").ready();
        let keeper = the_keeper(sandbox);
        sandbox.script("dash", "rm -r ../store; echo > ../store").run();
        let mut ticks = 0;
        wait_until("the keeper has ended", || {
            let used = [14, 15].map(|field| stat_field(keeper, field).unwrap_or_default());
            ticks = ticks.max(used.iter().sum());
            !lives(keeper)
        });
        assert!(ticks < 50, "it used {ticks} ticks");
        job.wait().exits(0);
    }

    fn a_keeper_ends_when_its_lock_is_released(sandbox: &Sandbox) {
        let mut job = script(sandbox, "csalock lock x; echo; read go; csalock unlock x; cat; :").ready();
        let keeper = the_keeper(sandbox);
        let words = std::fs::read_to_string(format!("/proc/{keeper}/cmdline")).unwrap();
        assert_eq!(words.trim_end_matches('\0'), "csalock-keeper");
        job.tell("go");
        wait_until("the keeper has ended", || !lives(keeper));
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_keeper_ends_when_its_lock_is_broken(sandbox: &Sandbox) {
        let _job = script(sandbox, "csalock lock x; echo; cat; :").ready();
        let keeper = the_keeper(sandbox);
        csalock(sandbox, &["unlock", "-q", "--force", "x"]).capture().exits(0);
        wait_until("the keeper has ended", || !lives(keeper));
    }

    fn a_keeper_is_small_and_inherits_nothing_of_the_script(sandbox: &Sandbox) {
        // The substitution that reads the handle, `wait` and a pipe do not wait for the keeper.
        let text = "h=$(csalock lock --print-handle x); csalock lock y | cat > /dev/null; wait; echo $h; cat; :";
        let job = script(sandbox, text).ready();
        wait_until("there are two", || keepers(sandbox).len() == 2);
        await_renewals(sandbox, "x", 1);
        for keeper in keepers(sandbox) {
            assert!(private_kibibytes(keeper) <= 2048, "{} KiB", private_kibibytes(keeper));
            assert!(children(job.pid()).iter().all(|child| *child != keeper), "the keeper is not a child of the script");
            let (session, terminal) = (stat_field(keeper, 6), stat_field(keeper, 7));
            assert_eq!((session, terminal), (Some(keeper.into()), Some(0)), "its own session, no terminal");
            let of_script = open_files(job.pid());
            assert!(!of_script.is_empty());
            let both: Vec<_> = open_files(keeper).into_iter().filter(|file| of_script.contains(file)).collect();
            assert!(both.iter().all(|file| file == std::path::Path::new("/dev/null")), "{both:?}");
            assert_eq!(std::fs::read_link(format!("/proc/{keeper}/cwd")).unwrap(), std::path::Path::new("/"));
        }
    }

    fn a_lock_without_its_keeper_ends_with_the_lease_for_other_hosts(sandbox: &Sandbox) {
        let mut job = script(sandbox, "csalock lock x; echo; read go; csalock unlock x; echo $?; cat; :").ready();
        // Each of the two replaces the other if that alone is killed.
        let keeper = the_keeper(sandbox);
        let parent = crate::sandbox::proc::stat(keeper).unwrap().1;
        send(parent, Signal::SIGSTOP);
        send(keeper, Signal::SIGKILL);
        send(parent, Signal::SIGKILL);
        let until = renewed_until(sandbox, "x").unwrap();
        let now = || lock::duration::rfc3339_millis(std::time::UNIX_EPOCH.elapsed().unwrap());
        wait_until("the lease is over", || now() > until);
        csalock(sandbox, &["run", "-nq", "x", "true"]).status(75).run();
        require!(has_namespaces("another pid namespace"));
        let said = "csalock: lock x was taken over from pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock x; echo; read go; csalock unlock x; echo $?; cat; :, which did not renew its lease\n";
        let words = ["--pid", "--fork", "--mount-proc", "csalock", "run", "-w", "inf", "x", "true"];
        sandbox.call("unshare", words).env("CSALOCK_LEASE", LEASE).stderr(said).run();
        job.tell("go");
        assert_eq!(job.lines(2)[1], "81");
    }

    fn a_command_holds_as_long_as_it_runs(sandbox: &Sandbox) {
        let (job, _) = running(sandbox, &[]);
        await_renewals(sandbox, "x", 4);
        let keeper = the_keeper(sandbox);
        job.wait().exits(0);
        assert_eq!(sandbox.state("x"), "free");
        assert!(!lives(keeper));
    }

    fn a_command_that_stands_still_keeps_its_lock(sandbox: &Sandbox) {
        let (job, command) = running(sandbox, &[]);
        send(command, Signal::SIGSTOP);
        await_renewals(sandbox, "x", 4);
        send(command, Signal::SIGCONT);
        job.wait().exits(0);
    }

    fn a_supervisor_that_stands_still_loses_nothing(sandbox: &Sandbox) {
        let (mut job, command) = running(sandbox, &[]);
        send(job.pid(), Signal::SIGSTOP);
        await_renewals(sandbox, "x", 4);
        job.release();
        wait_until("the command has ended", || !lives(command));
        wait_until("its keeper says so", || sandbox.state("x") != "held");
        csalock(sandbox, &["run", "-qn", "x", "true"]).run();
        job.send(Signal::SIGCONT);
        job.wait().exits(0);
    }

    fn a_job_keeps_its_lock_until_its_stopped_supervisor_reports_the_success(sandbox: &Sandbox) {
        let job = job_with_stopped_supervisor(sandbox);
        await_renewals(sandbox, "x", 4);
        csalock(sandbox, &["run", "-qn", "--once-per=99999d", "x", "echo", "again"]).status(75).run();
        job.send(Signal::SIGCONT);
        job.wait().exits(0);
        csalock(sandbox, &["run", "--once-per=99999d", "x", "echo", "again"]).run();
    }

    fn a_command_never_runs_without_a_keeper(sandbox: &Sandbox) {
        // However soon its supervisor is killed.
        for _ in 0..10 {
            let (mut job, command) = running(sandbox, &[]);
            job.send(Signal::SIGKILL);
            the_keeper(sandbox);
            job.release();
            wait_until("command and keeper have ended", || !lives(command) && keepers(sandbox).is_empty());
            csalock(sandbox, &["gc"]).capture();
        }
    }

    fn a_command_whose_supervisor_was_killed_keeps_its_lock_until_it_ends(sandbox: &Sandbox) {
        let (mut job, command) = running(sandbox, &[]);
        let keeper = the_keeper(sandbox);
        job.kill();
        await_renewals(sandbox, "x", 4);
        job.release();
        wait_until("the command and its keeper have ended", || !lives(command) && !lives(keeper));
        assert_eq!(sandbox.state("x"), "abandoned");
    }

    fn a_command_whose_lease_is_not_renewed_is_ended_before_it_expires(sandbox: &Sandbox) {
        let (mut job, command) = running(sandbox, &["--kill-after", "100ms"]);
        send(the_keeper(sandbox), Signal::SIGSTOP);
        // The next holder finds no command that still runs.
        let next = csalock(sandbox, &["run", "-q", "-w", "inf", "x", "dash", "-c", &format!("grep -q '^State:.[^ZX]' /proc/{command}/status 2> /dev/null && echo both")]);
        let done = next.capture();
        assert_eq!(done.stdout, "");
        wait_until("the supervisor has ended", || job.has_ended());
        let done = job.wait();
        assert_eq!(done.code, Some(85));
        let said = "csalock: the command was ended before the lease of lock x was over: it could not be renewed; see `csalock doctor`\n";
        // Its cat goes on.
        assert!(done.stderr.contains(&format!("{said}csalock: processes of the ended command go on without lock x: pid ")), "{done:?}");
    }

    fn a_command_goes_on_after_a_sleep_longer_than_its_lease_if_no_other_caller_acquired(sandbox: &Sandbox) {
        let (mut job, command) = running(sandbox, &[]);
        let keeper = the_keeper(sandbox);
        sleep_beyond_the_lease(sandbox, &[keeper, job.pid(), command]);
        job.send(Signal::SIGCONT);
        // Until the lease is renewed, csalock stops the command again as often as another process continues it.
        for _ in 0..2 {
            send(command, Signal::SIGCONT);
            wait_until("the command is stopped", || is_stopped(command));
        }
        send(keeper, Signal::SIGCONT);
        wait_until("the command goes on", || !is_stopped(command));
        await_renewals(sandbox, "x", 2);
        job.release();
        let said = "csalock: the lease of lock x was not renewed in time, because this machine or csalock stood still; the command was stopped until the lease was renewed, and no other caller held the lock\n";
        job.wait().complains(0, said);
    }

    fn a_command_without_a_supervisor_is_ended_after_a_sleep(sandbox: &Sandbox) {
        // Its caller, for example sudo(8), would see that it stops, and stop itself.
        let mut job = csalock(sandbox, &["run", "-F", "x", "dash", "-c", "echo; cat; :"]).spawn();
        job.lines(1);
        let keeper = the_keeper(sandbox);
        sleep_beyond_the_lease(sandbox, &[keeper, job.pid()]);
        send(keeper, Signal::SIGCONT);
        wait_until("the command is ended", || !lives(job.pid()));
        assert_eq!(job.wait().signal, Some(9));
    }

    fn a_renewal_after_a_sleep_saves_no_command_without_a_supervisor(sandbox: &Sandbox) {
        let mut job = csalock(sandbox, &["run", "-F", "x", "dash", "-c", "echo; cat; :"]).spawn();
        job.lines(1);
        let keeper = the_keeper(sandbox);
        sleep_beyond_the_lease(sandbox, &[keeper, job.pid()]);
        // The first thread, which ends commands, stands still while the one that renews goes on.
        let Some(first) = Traced::new(keeper) else { return };
        let other = threads(keeper).into_iter().find(|thread| *thread != keeper).unwrap();
        let looks = || voluntary_switches(keeper, other);
        let before = looks();
        send(keeper, Signal::SIGCONT);
        wait_until("the other thread has looked several times", || looks() > before + 8);
        drop(first);
        wait_until("the command is ended", || !lives(job.pid()));
        assert_eq!(job.wait().signal, Some(9));
    }

    fn a_command_that_the_user_stopped_stays_stopped_after_a_sleep(sandbox: &Sandbox) {
        for options in [&[][..], &["--tree"]] {
            let (job, command) = running(sandbox, options);
            let keeper = the_keeper(sandbox);
            let all = [&[command][..], &children(command)].concat();
            all.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
            sleep_beyond_the_lease(sandbox, &[keeper, job.pid()]);
            job.send(Signal::SIGCONT);
            send(keeper, Signal::SIGCONT);
            await_renewals(sandbox, "x", 2);
            assert!(is_stopped(command), "{options:?}");
            all.iter().for_each(|pid| send(*pid, Signal::SIGCONT));
            job.wait().exits(0);
        }
    }

    fn a_keeper_that_dies_in_a_sleep_is_replaced_while_the_command_is_stopped(sandbox: &Sandbox) {
        for options in [&[][..], &["--tree"]] {
            let (job, command) = running(sandbox, options);
            let keeper = the_keeper(sandbox);
            sleep_beyond_the_lease(sandbox, &[keeper, job.pid(), command]);
            send(keeper, Signal::SIGKILL);
            job.send(Signal::SIGCONT);
            send(command, Signal::SIGCONT);
            await_renewals(sandbox, "x", 2);
            wait_until("the command goes on", || !is_stopped(command));
            job.wait().exits(0);
        }
    }

    fn a_command_is_ended_after_a_sleep_in_which_another_host_acquired(sandbox: &Sandbox) {
        require!(has_namespaces("another pid namespace"));
        let (job, command) = running(sandbox, &[]);
        let all = [the_keeper(sandbox), job.pid(), command];
        sleep_beyond_the_lease(sandbox, &all);
        let words = ["--pid", "--fork", "--mount-proc", "csalock", "run", "-q", "-w", "inf", "x", "true"];
        sandbox.call("unshare", words).env("CSALOCK_LEASE", LEASE).run();
        all.into_iter().for_each(|pid| send(pid, Signal::SIGCONT));
        wait_until("the command is ended", || !lives(command));
        job.wait().says(85, "csalock: lost while the command ran: lock x: ");
    }

    fn a_command_that_is_stopped_after_a_sleep_is_ended_by_the_next_caller_if_csalock_was_killed(sandbox: &Sandbox) {
        for options in [&[][..], &["--tree"]] {
            let words = format!("csalock run {} x dash -c 'echo $$; cat; :'", options.join(" "));
            let (_job, command) = with_a_parent(sandbox, &words);
            let (supervisor, keeper, child) = (parent_of(command), the_keeper(sandbox), children(command)[0]);
            sleep_beyond_the_lease(sandbox, &[keeper, supervisor, command]);
            send(command, Signal::SIGCONT);
            send(supervisor, Signal::SIGCONT);
            wait_until("csalock stops the command", || is_stopped(command));
            kill_csalock(supervisor, keeper);
            let shown = csalock(sandbox, &["status", "x"]).capture();
            assert!(shown.stdout.contains(", stopped, and its csalock was killed\n"), "{shown:?}");
            let done = csalock(sandbox, &["run", "-w", "inf", "x", "echo", "next"]).capture();
            done.prints(0, "next\n");
            assert!(done.stderr.contains(", which "), "{done:?}");
            assert!(!lives(command));
            wait_until("the others of its tree have ended", || options.is_empty() || !lives(child));
        }
    }

    fn a_stopped_command_that_csalock_may_not_have_stopped_keeps_its_lock(sandbox: &Sandbox) {
        // A record without the handle in the command's environment may be forged.
        let bare = "csalock run x env -i dash -c 'echo $$; cat; :'";
        let warn = "csalock run --on-lost warn x dash -c 'echo $$; cat; :'";
        for words in [bare, warn] {
            let (_job, command) = with_a_parent(sandbox, words);
            let (supervisor, keeper) = (parent_of(command), the_keeper(sandbox));
            sleep_beyond_the_lease(sandbox, &[keeper, supervisor, command]);
            csalock(sandbox, &["run", "-qn", "x", "true"]).status(75).run();
            kill_csalock(supervisor, keeper);
            let done = csalock(sandbox, &["run", "-n", "x", "true"]).capture();
            assert!(done.code == Some(75) && done.stderr.contains("now stopped"), "{done:?}");
            assert!(is_stopped(command), "{words:?}");
            send(command, Signal::SIGKILL);
            wait_until("the lock is free", || csalock(sandbox, &["run", "-qn", "x", "true"]).capture().code == Some(0));
        }
    }

    fn a_command_with_no_fork_has_a_keeper_and_no_child(sandbox: &Sandbox) {
        let words = ["run", "-F", "x", "dash", "-c", "echo $$; wait; cat; :"];
        let mut job = csalock(sandbox, &words).spawn();
        let command: i32 = job.lines(1)[0].parse().unwrap();
        assert_eq!(command, job.pid());
        assert!(children(command).iter().all(|child| *child != the_keeper(sandbox)));
        await_renewals(sandbox, "x", 4);
        let keeper = the_keeper(sandbox);
        job.wait().exits(0);
        wait_until("the keeper has ended", || !lives(keeper));
    }

    fn a_waiter_that_waits_longer_than_a_lease_is_granted(sandbox: &Sandbox) {
        let (job, _) = running(sandbox, &[]);
        let waiter = csalock(sandbox, &["run", "-w", "inf", "x", "echo", "served"]).spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        await_renewals(sandbox, "x", 5);
        assert_eq!(sandbox.waiters("x").len(), 1);
        job.wait().exits(0);
        assert_eq!(waiter.wait().stdout, "served\n");
    }

    fn a_program_that_uses_the_library_holds_as_long_as_its_guard_is_there(sandbox: &Sandbox) {
        let words = ["renewed::holder_by_the_library", "--exact", "--ignored", "--nocapture"];
        let job = sandbox.call(std::env::current_exe().unwrap(), words).env("CSALOCK_LEASE", LEASE).spawn();
        wait_until("it holds", || sandbox.state("x") == "held");
        await_renewals(sandbox, "x", 4);
        assert_eq!(keepers(sandbox), [0; 0]);
        job.wait().exits(0);
        assert_eq!(sandbox.state("x"), "free");
    }

    fn the_lease_in_a_url_counts_before_the_variable_and_for_commands_below(sandbox: &Sandbox) {
        let mark = if sandbox.store().contains('?') { "&" } else { "?" };
        let with_lease = format!("{}{mark}lease=3s", sandbox.store());
        let again = format!("csalock run -qn x true; echo $?; csalock run -qn --store '{}' x true; echo $?", sandbox.store());
        let inner = format!("echo \"$CSALOCK_STORE\"; {again}; csalock run y cat");
        let words = ["run", "--store", &with_lease, "x", "dash", "-c", &inner];
        let mut job = sandbox.csalock(words).env("CSALOCK_LEASE", "1h").spawn();
        let lines = job.lines(3);
        assert!(lines[0].ends_with(&format!("{mark}lease=3s")), "{lines:?}");
        assert_eq!(lines[1..], ["84", "84"], "a store is the same with and without its lease");
        wait_until("the inner command runs", || sandbox.state("y") == "held");
        // The other callers do not name the lease.
        await_renewals(sandbox, "x", 2);
        await_renewals(sandbox, "y", 1);
        sandbox.csalock(["run", "-qn", "x", "true"]).status(75).run();
        job.wait().exits(0);
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_garbled_lease_is_a_usage_error(sandbox: &Sandbox) {
        for (lease, why) in [("2s", "is less than three seconds"), ("soon", "is no duration")] {
            let done = sandbox.csalock(["run", "x", "true"]).env("CSALOCK_LEASE", lease).capture();
            done.exits(64);
            assert!(done.stderr.contains("CSALOCK_LEASE") && (lease == "soon" || done.stderr.contains(why)), "{done:?}");
        }
    }
}

/// A lock beside a file has no lease on this host, so the length of its leases must not delay renewals.
#[test]
fn a_store_without_leases_does_not_set_the_times_of_one_with_longer_leases() {
    let sandbox = Sandbox::new(Kind::Shared);
    let store = format!("{}&lease=9s", sandbox.store());
    let words = ["run", "--store", &store, "outer", "csalock", "run", "x", "--also", "./file", "cat"];
    let job = sandbox.csalock(words).without("CSALOCK_STORE").env("CSALOCK_LEASE", "3s").spawn();
    wait_until("it holds", || sandbox.state("x") == "held");
    await_renewals(&sandbox, "x", 2);
    job.wait().exits(0);
}

/// Every keeper that does not look at once looks after a second, so one quick end among many is enough.
#[test]
fn a_keeper_that_replaces_another_one_sees_at_once_what_that_missed() {
    let sandbox = Sandbox::new(Kind::Shared);
    let takes = || {
        let job = sandbox.script("dash", "csalock lock x; echo; cat; :").env("CSALOCK_LEASE", "1000s").ready();
        let keeper = the_keeper(&sandbox);
        let parent = parent_of(keeper);
        send(keeper, Signal::SIGSTOP);
        sandbox.csalock(["unlock", "-q", "--force", "x"]).capture();
        let begun = std::time::Instant::now();
        send(keeper, Signal::SIGKILL);
        wait_until("the next keeper has ended, and its parent", || !lives(parent));
        let took = begun.elapsed();
        job.wait().exits(0);
        took
    };
    assert!((0..20).any(|_| takes() < std::time::Duration::from_millis(700)), "it always looks late");
}

fn open_files(pid: i32) -> Vec<std::path::PathBuf> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|entry| entry.unwrap().path());
    descriptors.filter_map(|path| std::fs::read_link(path).ok()).collect()
}

#[test]
#[ignore = "it is a part of another test, in a process of its own"]
fn holder_by_the_library() {
    let options = csalock_locks::OpenOptions::new().environment(true);
    let locks = options.open(&std::env::var("CSALOCK_STORE").unwrap()).unwrap();
    let guard = locks.lock("x", std::time::Duration::ZERO).unwrap().held().unwrap();
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    assert_eq!(guard.release(), Ok(()));
}
