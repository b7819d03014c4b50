# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_csalock_global_optspecs
    string join \n store= json q/quiet v/verbose color= h/help V/version
end

function __fish_csalock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_csalock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_csalock_using_subcommand
    set -l cmd (__fish_csalock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c csalock -n "__fish_csalock_needs_command" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_needs_command" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_needs_command" -l json -d 'Print the result as one JSON document; not for run'
complete -c csalock -n "__fish_csalock_needs_command" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_needs_command" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_needs_command" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_needs_command" -s V -l version -d 'Print version; with -v, stores and formats too'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "run" -d 'Acquire a lock, run a command, release the lock'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "lock" -d 'Acquire locks for the calling script'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "unlock" -d 'Release locks'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "wait" -d 'Wait until locks are free, and leave them free'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "status" -d 'Show holders and waiters: since when, until when and why'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "list" -d 'Show holders and waiters: since when, until when and why'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "history" -d 'Show past holders: from when to when, and how it ended'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "overdue" -d 'List jobs that have not succeeded in time'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "metrics" -d 'Print the state of the locks for Prometheus'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "renew" -d 'Restart the time limit of held locks'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "get" -d 'Print the value that a lock guards'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "put" -d 'Write the value that a lock guards'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "del" -d 'Delete the value that a lock guards'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "claim" -d 'Claim names permanently, all or none, and print the id'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "unclaim" -d 'Give up claims'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "lookup" -d 'Print the id that claims a name, or the names of an id'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "gc" -d 'Remove leftovers of dead holders and waiters'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "doctor" -d 'Check a store, and say how to repair what is wrong'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "serve" -d 'Serve a directory of locks to one client of another host'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "man" -d 'Show a page of the manual'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "completions" -d 'Print the completions for a shell'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l backoff -d 'Pause between two looks at the lock: it doubles from MIN to MAX, for example 50ms..2s' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l label -d 'Show this reason in `csalock status`' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 if the lock is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -s j -l slots -d 'Acquire one of N slots: at most N holders at once' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l ttl -d 'Release the lock after this time at the latest' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l busy -d 'Action while the lock is busy' -r -f -a "wait\t'Wait, as long as -w allows'
skip\t'Do not run the command, and exit 0: the same as -n -E 0'
latest\t'Wait, without a limit unless -w gives one, until a newer caller with this option takes the place; then exit 75'
replace\t'End the command that holds the lock, by TERM and after --kill-after by KILL, and wait for the lock; a newer caller with this option takes the place'"
complete -c csalock -n "__fish_csalock_using_subcommand run" -s c -l command -d 'Run STRING with /bin/sh -c' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l max-hold -d 'End the command after this time: exit 124, or 137 if csalock had to kill it' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l kill-after -d 'Kill a command that goes on for this time after it was asked to end' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l on-lost -d 'Action before --ttl is over, or a lease that could not be renewed' -r -f -a "kill\t'csalock ends the command before'
warn\t'The command goes on, and csalock prints a warning'"
complete -c csalock -n "__fish_csalock_using_subcommand run" -l once-per -d 'Run the job at most once in each hour, day, week or DURATION, on all hosts of the store' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l retries -d 'With --once-per: begin at most N more runs in a slot if runs fail or die, or inf [default: 3]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l retry-after -d 'With --once-per: begin no run earlier than this after the last run of the slot began' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l overdue -d 'If the lock is busy, exit 0 and print nothing while the last success of the job is younger than this; complain once with exit 86 when it is older' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l also -d 'Acquire this lock too: all or none; this option may follow the name' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -s w -l timeout -d 'Wait at most this long: 250ms, 0.5s, 5m, 1h30m, 1d, or seconds; 0 tries once, inf has no limit [default: 30s; 75s where other hosts use the store]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand run" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l fail-on-stale -d 'Do not take over a stale lock, whose owner died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l no-command -d 'Store only the program\'s name, not the arguments of the command; CSALOCK_COMMAND=label does so for all calls'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s x -l exclusive -d 'Acquire an exclusive lock; the default'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s s -l shared -d 'Share the lock with other holders that share it'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l forever -d 'Keep the lock until it is released, or its --ttl is over, even if its owner ends'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s F -l no-fork -d 'Become the command instead of waiting for it; the lock ends with the command'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l flock -d 'Lock the file itself with flock(2) too, as flock(1) does; for names that are paths'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l fcntl -d 'Lock the file itself with fcntl(2) too, as dpkg does; for names that are paths'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l reentrant -d 'If the caller runs under the lock already, run the command without acquiring it again'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l tree -d 'Hold the lock until all processes that the command started have ended; signals and limits reach all of them'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s w -l timeout -d 'Wait at most this long: 250ms, 0.5s, 5m, 1h30m, 1d, or seconds; 0 tries once, inf has no limit [default: 30s; 75s where other hosts use the store]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l backoff -d 'Pause between two looks at the lock: it doubles from MIN to MAX, for example 50ms..2s' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l label -d 'Show this reason in `csalock status`' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 if the lock is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s j -l slots -d 'Acquire one of N slots: at most N holders at once' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l ttl -d 'Release the lock after this time at the latest' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l pid -d 'Acquire the lock for this process instead of the calling script' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l fd -d 'Lock the file that descriptor N is open on, until the last process has closed it, like flock(1)' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l fail-on-stale -d 'Do not take over a stale lock, whose owner died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l no-command -d 'Store only the program\'s name, not the arguments of the command; CSALOCK_COMMAND=label does so for all calls'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s x -l exclusive -d 'Acquire an exclusive lock; the default'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s s -l shared -d 'Share the lock with other holders that share it'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l forever -d 'Keep the lock until it is released, or its --ttl is over, even if its owner ends'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l print-handle -d 'Print the handle, with which other processes too can release the locks'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l reentrant -d 'Succeed without acquiring a lock that the caller holds or runs under already; unlock --reentrant is its counterpart'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l handle -d 'Handle of the lock, or @FILE with it [env: CSALOCK_HANDLE]; otherwise the caller must be the owner' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l kill-after -d 'With --end: kill a command or script that goes on for this time after it was asked to end' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l token -d 'With --force: break only the grant with this fencing token' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l fd -d 'Release the lock of the file that descriptor N is open on, for all processes that have this descriptor' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l all -d 'Release all locks of the caller: in the store, in the current directory, and beside the files named'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l force -d 'Break the lock of any holder, and print its holder, whose command may still run beside the next one; \'*\' is every lock of the store except claims'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l end -d 'With --force: end the holder, and release the lock only when its command or script has ended, or its lease is over'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l reentrant -d 'Leave a lock that the caller runs under: the counterpart of lock --reentrant'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand wait" -s w -l timeout -d 'Wait at most this long: 250ms, 0.5s, 5m, 1h30m, 1d, or seconds; 0 tries once, inf has no limit [default: 30s; 75s where other hosts use the store]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand wait" -l backoff -d 'Pause between two looks at the lock: it doubles from MIN to MAX, for example 50ms..2s' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand wait" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 if the lock is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand wait" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand wait" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand wait" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand wait" -l flock -d 'Of the locks of other programs on the file, wait only for those of flock(2), as flock(1) has them'
complete -c csalock -n "__fish_csalock_using_subcommand wait" -l fcntl -d 'Of the locks of other programs on the file, wait only for those of fcntl(2), as apt and dpkg have them'
complete -c csalock -n "__fish_csalock_using_subcommand wait" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand wait" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand wait" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand wait" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand status" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand status" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand status" -s 1 -l names-only -d 'Print the names only, one per line'
complete -c csalock -n "__fish_csalock_using_subcommand status" -s W -l watch -d 'Update the display each second until Ctrl-C'
complete -c csalock -n "__fish_csalock_using_subcommand status" -l all-stores -d 'Show the stores of this user, of root and of CSALOCK_STORES (a list separated by spaces), and for root those of all users; with NAME, only locks of this name'
complete -c csalock -n "__fish_csalock_using_subcommand status" -l utc -d 'Show times in UTC instead of the local zone'
complete -c csalock -n "__fish_csalock_using_subcommand status" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand status" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand status" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand status" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand list" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand list" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand list" -s 1 -l names-only -d 'Print the names only, one per line'
complete -c csalock -n "__fish_csalock_using_subcommand list" -s W -l watch -d 'Update the display each second until Ctrl-C'
complete -c csalock -n "__fish_csalock_using_subcommand list" -l all-stores -d 'Show the stores of this user, of root and of CSALOCK_STORES (a list separated by spaces), and for root those of all users; with NAME, only locks of this name'
complete -c csalock -n "__fish_csalock_using_subcommand list" -l utc -d 'Show times in UTC instead of the local zone'
complete -c csalock -n "__fish_csalock_using_subcommand list" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand list" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand list" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand list" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand history" -l since -d 'Show only grants that ended after this: 12h, 02:13, yesterday, 2026-11-21, "2026-11-21 02:13"' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand history" -l until -d 'Show only grants that began before the end of this minute or day; formats as for --since' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand history" -l at -d 'Show the grants that stood at this time; formats as for --since, such as 02:13' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand history" -s n -l lines -d 'Show the last N grants; the default is 50, or all with --json or a time' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand history" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand history" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand history" -l utc -d 'Show and read times in UTC instead of the local zone'
complete -c csalock -n "__fish_csalock_using_subcommand history" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand history" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand history" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand history" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand overdue" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand overdue" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand overdue" -l all -d 'List the jobs that are on time too, and when each of them is due'
complete -c csalock -n "__fish_csalock_using_subcommand overdue" -l forget -d 'Forget when the named jobs succeeded and when they must'
complete -c csalock -n "__fish_csalock_using_subcommand overdue" -l utc -d 'Show times in UTC instead of the local zone'
complete -c csalock -n "__fish_csalock_using_subcommand overdue" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand overdue" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand overdue" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand overdue" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand metrics" -s o -l output -d 'Write to this file: a temporary file in the same directory replaces it' -r -F
complete -c csalock -n "__fish_csalock_using_subcommand metrics" -l limit -d 'Show at most N locks: those named first, then those in use, then those held last' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand metrics" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand metrics" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand metrics" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand metrics" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand metrics" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand renew" -l handle -d 'Handle of the lock, or @FILE with it [env: CSALOCK_HANDLE]; otherwise the caller must be the owner' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand renew" -l ttl -d 'Release the lock after this time, from now, at the latest' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand renew" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand renew" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand renew" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand renew" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand renew" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand renew" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s w -l timeout -d 'Wait at most this long: 250ms, 0.5s, 5m, 1h30m, 1d, or seconds; 0 tries once, inf has no limit [default: 30s; 75s where other hosts use the store]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l backoff -d 'Pause between two looks at the lock: it doubles from MIN to MAX, for example 50ms..2s' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l label -d 'Show this reason in `csalock status`' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 if the lock is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -s j -l slots -d 'Acquire one of N slots: at most N holders at once' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l ttl -d 'Release the lock after this time at the latest' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l pid -d 'Acquire the lock for this process instead of the calling script' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand get" -l lock -d 'Acquire the lock and read, in one step'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand get" -l fail-on-stale -d 'Do not take over a stale lock, whose owner died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand get" -l no-command -d 'Store only the program\'s name, not the arguments of the command; CSALOCK_COMMAND=label does so for all calls'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s x -l exclusive -d 'Acquire an exclusive lock; the default'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s s -l shared -d 'Share the lock with other holders that share it'
complete -c csalock -n "__fish_csalock_using_subcommand get" -l forever -d 'Keep the lock until it is released, or its --ttl is over, even if its owner ends'
complete -c csalock -n "__fish_csalock_using_subcommand get" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand put" -s w -l timeout -d 'Wait at most this long: 250ms, 0.5s, 5m, 1h30m, 1d, or seconds; 0 tries once, inf has no limit [default: 30s; 75s where other hosts use the store]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l backoff -d 'Pause between two looks at the lock: it doubles from MIN to MAX, for example 50ms..2s' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l label -d 'Show this reason in `csalock status`' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 if the lock is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l handle -d 'Handle of the lock, or @FILE with it [env: CSALOCK_HANDLE]; otherwise the caller must be the owner' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l if-version -d 'Write only if the value has this version; otherwise exit 80' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l mode -d 'Permissions of the value, within those of the store: 0600; they stay until another --mode' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand put" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l fail-on-stale -d 'Do not take over a stale lock, whose owner died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l no-command -d 'Store only the program\'s name, not the arguments of the command; CSALOCK_COMMAND=label does so for all calls'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l unlock -d 'Write only as the holder of the lock, and release it in the same step'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l even-if-stale -d 'With --unlock: write even if the grant is over, provided that no other caller has had the lock since'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l if-absent -d 'Write only if the value does not exist yet; otherwise exit 83'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand put" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand put" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand put" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand del" -s w -l timeout -d 'Wait at most this long: 250ms, 0.5s, 5m, 1h30m, 1d, or seconds; 0 tries once, inf has no limit [default: 30s; 75s where other hosts use the store]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l backoff -d 'Pause between two looks at the lock: it doubles from MIN to MAX, for example 50ms..2s' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l label -d 'Show this reason in `csalock status`' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 if the lock is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l handle -d 'Handle of the lock, or @FILE with it [env: CSALOCK_HANDLE]; otherwise the caller must be the owner' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l if-version -d 'Write only if the value has this version; otherwise exit 80' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand del" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand del" -l fail-on-stale -d 'Do not take over a stale lock, whose owner died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand del" -l no-command -d 'Store only the program\'s name, not the arguments of the command; CSALOCK_COMMAND=label does so for all calls'
complete -c csalock -n "__fish_csalock_using_subcommand del" -l unlock -d 'Write only as the holder of the lock, and release it in the same step'
complete -c csalock -n "__fish_csalock_using_subcommand del" -l even-if-stale -d 'With --unlock: write even if the grant is over, provided that no other caller has had the lock since'
complete -c csalock -n "__fish_csalock_using_subcommand del" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand del" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand del" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand del" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s w -l timeout -d 'Wait at most this long: 250ms, 0.5s, 5m, 1h30m, 1d, or seconds; 0 tries once, inf has no limit [default: 30s; 75s where other hosts use the store]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l backoff -d 'Pause between two looks at the lock: it doubles from MIN to MAX, for example 50ms..2s' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l label -d 'Show this reason in `csalock status`' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 if the lock is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l id -d 'The id that claims the names, for example a user number; the default is a new id' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l fail-on-stale -d 'Do not take over a stale lock, whose owner died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l no-command -d 'Store only the program\'s name, not the arguments of the command; CSALOCK_COMMAND=label does so for all calls'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -l id -d 'The id that claims the names' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -l all -d 'Give up all names that the id claims in the store'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -l id -d 'Print the names that this id claims, one per line' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand gc" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand gc" -l dry-run -d 'Only print what would be removed'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -l store -d 'Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -l json -d 'Print the result as one JSON document'
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand serve" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand serve" -l stdio -d 'Speak on standard input and output'
complete -c csalock -n "__fish_csalock_using_subcommand serve" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand man" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand man" -l roff -d 'Print the source of the page, which man(1) reads'
complete -c csalock -n "__fish_csalock_using_subcommand man" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand man" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand man" -s h -l help -d 'Print help; -h is shorter'
complete -c csalock -n "__fish_csalock_using_subcommand completions" -l color -d 'Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]' -r -f -a "auto\t'On a terminal, unless the environment forbids or forces colours'
always\t'Everywhere'
never\t'Nowhere'"
complete -c csalock -n "__fish_csalock_using_subcommand completions" -s q -l quiet -d 'Print no message for an answer that the exit code gives'
complete -c csalock -n "__fish_csalock_using_subcommand completions" -s v -l verbose -d 'Print each step on stderr'
complete -c csalock -n "__fish_csalock_using_subcommand completions" -s h -l help -d 'Print help; -h is shorter'

# The words before the cursor that come after the command and its options, one a line; and whether there are any.
function __fish_csalock_operands
    set -l valued --also --at --backoff --busy --color --command --conflict-exit-code --fd --handle --id --if-version --kill-after --label --limit --lines --max-hold --mode --on-lost --once-per --output --overdue --pid --retries --retry-after --since --slots --store --timeout --token --ttl --until -E -c -j -o -w
    set -l words (commandline -opc)
    set -e words[1]
    set -l has_command 0
    while set -q words[1]
        if test "$words[1]" = --
            set -e words[1]
            break
        else if contains -- $words[1] $valued
            set -e words[1]
        else if not string match -q -- '-*' $words[1]
            test $has_command = 1
            and break
            set has_command 1
        end
        set -e words[1]
    end
    set -q words[1]
    and printf '%s\n' $words
end

# The option for the store that is meant, one word a line.
function __fish_csalock_store
    set -l words (commandline -opc)
    set -l at (contains -i -- --store $words)
    and printf '%s\n' --store $words[(math $at + 1)]
    string match -- '--store=*' $words
end

# The locks of the store that is meant. Names that need escapes to be shown are left out.
function __fish_csalock_live
    csalock status (__fish_csalock_store) -1 2>/dev/null | string match -rv '\\\\'
end

# The locks that are held or were held lately.
function __fish_csalock_known
    __fish_csalock_live
    csalock history (__fish_csalock_store) --json -n 200 2>/dev/null |
        string match -ar '\{"name":"[^"\\\\]*"' | string split -f4 '"'
end

# Whether this command is being typed, and its word is not a path: a name is wanted, and no file.
function __fish_csalock_wants_name
    __fish_csalock_using_subcommand $argv
    and not string match -q '*/*' -- (commandline -ct)
end

# The beginnings of a store's URL, and then paths.
function __fish_csalock_stores
    set -l typed (commandline -ct | string replace -r '^--store=' '')
    switch $typed
        case 'dir:*'
            printf 'dir:%s\n' (__fish_complete_directories (string replace dir: '' -- $typed) | string replace -r '\t.*' '')
        case 'sqlite:*'
            printf 'sqlite:%s\n' (__fish_complete_path (string replace sqlite: '' -- $typed) | string replace -r '\t.*' '')
        case '*'
            printf '%s\n' dir: sqlite: etcd:// etcds:// postgres:// ssh://
    end
end

# A command with its own completions, after the name.
function __fish_csalock_job
    set -l words (__fish_csalock_operands)
    set -e words[1]
    test "$words[1]" = --
    and set -e words[1]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end

for command in unlock wait status list metrics renew get put del unclaim lookup
    complete -c csalock -n "__fish_csalock_wants_name $command" -f -a '(__fish_csalock_live)'
end
for command in lock history gc doctor overdue claim
    complete -c csalock -n "__fish_csalock_wants_name $command" -f -a '(__fish_csalock_known)'
end
for command in run
    complete -c csalock -n "__fish_csalock_wants_name $command; and not __fish_csalock_operands >/dev/null" \
        -f -a '(__fish_csalock_known)'
    complete -c csalock -n "__fish_csalock_using_subcommand $command; and __fish_csalock_operands >/dev/null" \
        -f -a '(__fish_csalock_job)'
end
complete -c csalock -n "__fish_csalock_using_subcommand man" -f -a 'run lock unlock wait status list history overdue metrics renew get put del claim unclaim lookup gc doctor serve man completions 7'
complete -c csalock -n "__fish_csalock_using_subcommand completions" -f -a 'bash zsh fish'
complete -c csalock -n "not __fish_csalock_using_subcommand serve man completions" -l store -x -a '(__fish_csalock_stores)'
