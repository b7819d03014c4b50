# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_csalock_global_optspecs
    string join \n h/help V/version
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

complete -c csalock -n "__fish_csalock_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_needs_command" -s V -l version -d 'Print version'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "lock" -d 'Take a lock for the calling script; prints the handle that proves it'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "unlock" -d 'Give back locks'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "run-with-lock" -d 'Take a lock, run a command, give the lock back'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "run" -d 'Take a lock, run a command, give the lock back'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "status" -d 'Show who holds, since when, until when, and who waits; changes nothing'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "list" -d 'Show who holds, since when, until when, and who waits; changes nothing'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "history" -d 'Show who held what, from when to when, and how it ended'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "renew" -d 'Let locks that are held last a new time from now'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "get" -d 'Print the value that a lock guards'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "put" -d 'Write the value that a lock guards'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "del" -d 'Delete the value that a lock guards'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "claim" -d 'Claim names for good, all of them or none; prints the id'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "unclaim" -d 'Give up claims'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "lookup" -d 'Print the id under which a name is claimed, or the names of an id'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "gc" -d 'Remove what dead holders and waiters left behind'
complete -c csalock -n "__fish_csalock_needs_command" -f -a "doctor" -d 'Say whether a store is all right, and what to do if not'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s w -l timeout -d 'Wait at most this long: 10s, 5m, 250ms, 1h30m, seconds; 0 tries once; inf waits for ever' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l backoff -d 'Pauses between looks that nothing prompts, for example 50ms..2s: the first, and the longest that they double to' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l attempts -d 'Give up after so many looks, with exit 75' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l label -d 'Say why, for those who look at the lock' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 when it is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s j -l slots -d 'Take one of N places: so many may hold it at once' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l ttl -d 'Hold it at most this long' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l pid -d 'The lock belongs to this process instead of the script that calls' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l fail-on-stale -d 'Do not take over from a holder that died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s x -l exclusive -d 'Take it for oneself alone; the default'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s s -l shared -d 'Take it together with all others who share it'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -l forever -d 'Hold it until it is given back, whatever becomes of the owner'
complete -c csalock -n "__fish_csalock_using_subcommand lock" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l handle -d 'The handle that proves the lock is held [env: CSALOCK_HANDLE; else being its owner does]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l token -d 'With --force: only the grant with this fencing token' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l all -d 'Give back everything that the caller owns: in the store, in the current directory, and beside the files named'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -l force -d 'Break the lock, whoever holds it, and say whose it was; with --all, every lock of the store but claims'
complete -c csalock -n "__fish_csalock_using_subcommand unlock" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s w -l timeout -d 'Wait at most this long: 10s, 5m, 250ms, 1h30m, seconds; 0 tries once; inf waits for ever' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l backoff -d 'Pauses between looks that nothing prompts, for example 50ms..2s: the first, and the longest that they double to' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l attempts -d 'Give up after so many looks, with exit 75' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l label -d 'Say why, for those who look at the lock' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 when it is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s j -l slots -d 'Take one of N places: so many may hold it at once' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l ttl -d 'Hold it at most this long' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s c -l command -d 'Run STRING with /bin/sh -c' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l max-hold -d 'End the command after this time: exit 124, or 137 if it had to be killed' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l kill-after -d 'Kill a command that was asked to end and did not, after this time' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l on-lost -d 'What to do with the command when --ttl is about to be over, or a lease that could not be renewed' -r -f -a "kill\t'It is ended before'
warn\t'It goes on; a warning is printed'"
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l also -d 'Take this lock as well: all or none. It may also stand after the name' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l fail-on-stale -d 'Do not take over from a holder that died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s x -l exclusive -d 'Take it for oneself alone; the default'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s s -l shared -d 'Take it together with all others who share it'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l forever -d 'Hold it until it is given back, whatever becomes of the owner'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s F -l no-fork -d 'Become the command instead of waiting for it; the lock ends with it'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -l flock -d 'Lock the file itself with flock(2) as well, as flock(1) does; for names that are paths'
complete -c csalock -n "__fish_csalock_using_subcommand run-with-lock" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand run" -s w -l timeout -d 'Wait at most this long: 10s, 5m, 250ms, 1h30m, seconds; 0 tries once; inf waits for ever' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l backoff -d 'Pauses between looks that nothing prompts, for example 50ms..2s: the first, and the longest that they double to' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l attempts -d 'Give up after so many looks, with exit 75' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l label -d 'Say why, for those who look at the lock' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 when it is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -s j -l slots -d 'Take one of N places: so many may hold it at once' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l ttl -d 'Hold it at most this long' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -s c -l command -d 'Run STRING with /bin/sh -c' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l max-hold -d 'End the command after this time: exit 124, or 137 if it had to be killed' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l kill-after -d 'Kill a command that was asked to end and did not, after this time' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l on-lost -d 'What to do with the command when --ttl is about to be over, or a lease that could not be renewed' -r -f -a "kill\t'It is ended before'
warn\t'It goes on; a warning is printed'"
complete -c csalock -n "__fish_csalock_using_subcommand run" -l also -d 'Take this lock as well: all or none. It may also stand after the name' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand run" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l fail-on-stale -d 'Do not take over from a holder that died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s x -l exclusive -d 'Take it for oneself alone; the default'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s s -l shared -d 'Take it together with all others who share it'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l forever -d 'Hold it until it is given back, whatever becomes of the owner'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s F -l no-fork -d 'Become the command instead of waiting for it; the lock ends with it'
complete -c csalock -n "__fish_csalock_using_subcommand run" -l flock -d 'Lock the file itself with flock(2) as well, as flock(1) does; for names that are paths'
complete -c csalock -n "__fish_csalock_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand status" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand status" -l interval -d 'How often --watch looks again' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand status" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand status" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand status" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand status" -s 1 -l names-only -d 'Print the names only, one a line'
complete -c csalock -n "__fish_csalock_using_subcommand status" -s W -l watch -d 'Go on showing it, as top(1) does, until q or Ctrl-C'
complete -c csalock -n "__fish_csalock_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand list" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand list" -l interval -d 'How often --watch looks again' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand list" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand list" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand list" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand list" -s 1 -l names-only -d 'Print the names only, one a line'
complete -c csalock -n "__fish_csalock_using_subcommand list" -s W -l watch -d 'Go on showing it, as top(1) does, until q or Ctrl-C'
complete -c csalock -n "__fish_csalock_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand history" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand history" -l since -d 'Show only what ended within this time: 12h, 7d' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand history" -s n -l lines -d 'Show the last N; without it 50, or all with --json' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand history" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand history" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand history" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand history" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand renew" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand renew" -l handle -d 'The handle that proves the lock is held [env: CSALOCK_HANDLE; else being its owner does]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand renew" -l ttl -d 'Hold it at most this long from now on' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand renew" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand renew" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand renew" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand renew" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand get" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand get" -s w -l timeout -d 'Wait at most this long: 10s, 5m, 250ms, 1h30m, seconds; 0 tries once; inf waits for ever' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l backoff -d 'Pauses between looks that nothing prompts, for example 50ms..2s: the first, and the longest that they double to' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l attempts -d 'Give up after so many looks, with exit 75' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l label -d 'Say why, for those who look at the lock' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 when it is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -s j -l slots -d 'Take one of N places: so many may hold it at once' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l ttl -d 'Hold it at most this long' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l pid -d 'The lock belongs to this process instead of the script that calls' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand get" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand get" -l lock -d 'Take the lock and read, in one step'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand get" -l fail-on-stale -d 'Do not take over from a holder that died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s x -l exclusive -d 'Take it for oneself alone; the default'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s s -l shared -d 'Take it together with all others who share it'
complete -c csalock -n "__fish_csalock_using_subcommand get" -l forever -d 'Hold it until it is given back, whatever becomes of the owner'
complete -c csalock -n "__fish_csalock_using_subcommand get" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand put" -s w -l timeout -d 'Wait at most this long: 10s, 5m, 250ms, 1h30m, seconds; 0 tries once; inf waits for ever' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l backoff -d 'Pauses between looks that nothing prompts, for example 50ms..2s: the first, and the longest that they double to' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l attempts -d 'Give up after so many looks, with exit 75' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l label -d 'Say why, for those who look at the lock' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 when it is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l handle -d 'The handle that proves the lock is held [env: CSALOCK_HANDLE; else being its owner does]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l if-version -d 'Only if the value has this version: exit 80 if it has another' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l mode -d 'Who may read the value, of those who may use the store: 0600. It stays like that until another --mode' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand put" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand put" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand put" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand put" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l fail-on-stale -d 'Do not take over from a holder that died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l unlock -d 'Only as the holder of the lock, and give it back in the same step'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l even-if-stale -d 'With --unlock: also when the lock\'s time is over, if nobody has had it since'
complete -c csalock -n "__fish_csalock_using_subcommand put" -l if-absent -d 'Only if there is no value yet: exit 83 if there is one'
complete -c csalock -n "__fish_csalock_using_subcommand put" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand del" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand del" -s w -l timeout -d 'Wait at most this long: 10s, 5m, 250ms, 1h30m, seconds; 0 tries once; inf waits for ever' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l backoff -d 'Pauses between looks that nothing prompts, for example 50ms..2s: the first, and the longest that they double to' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l attempts -d 'Give up after so many looks, with exit 75' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l label -d 'Say why, for those who look at the lock' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 when it is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l handle -d 'The handle that proves the lock is held [env: CSALOCK_HANDLE; else being its owner does]' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l if-version -d 'Only if the value has this version: exit 80 if it has another' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand del" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand del" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand del" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand del" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand del" -l fail-on-stale -d 'Do not take over from a holder that died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand del" -l unlock -d 'Only as the holder of the lock, and give it back in the same step'
complete -c csalock -n "__fish_csalock_using_subcommand del" -l even-if-stale -d 'With --unlock: also when the lock\'s time is over, if nobody has had it since'
complete -c csalock -n "__fish_csalock_using_subcommand del" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s w -l timeout -d 'Wait at most this long: 10s, 5m, 250ms, 1h30m, seconds; 0 tries once; inf waits for ever' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l backoff -d 'Pauses between looks that nothing prompts, for example 50ms..2s: the first, and the longest that they double to' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l attempts -d 'Give up after so many looks, with exit 75' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l label -d 'Say why, for those who look at the lock' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s E -l conflict-exit-code -d 'Exit with this code instead of 75 when it is busy' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l id -d 'What the names are to lead to, for example a user\'s number; a fresh one if there is none' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s n -l nonblock -d 'Do not wait: the same as -w 0'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -l fail-on-stale -d 'Do not take over from a holder that died or whose time is over: exit 80 instead'
complete -c csalock -n "__fish_csalock_using_subcommand claim" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -l id -d 'The id that they were claimed under' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -l all -d 'Give up everything that the id has in the store'
complete -c csalock -n "__fish_csalock_using_subcommand unclaim" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -l id -d 'Print the names that are claimed under this id, one a line' -r -f
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand lookup" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand gc" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -l dry-run -d 'Only say what would be removed'
complete -c csalock -n "__fish_csalock_using_subcommand gc" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -l store -d 'Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]' -r
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -l json -d 'Print the result as one JSON document; run-with-lock has none'
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -s q -l quiet -d 'Say nothing on stderr about answers that the exit code tells'
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -s v -l verbose -d 'Say on stderr what happens'
complete -c csalock -n "__fish_csalock_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'

# The words before the cursor that come after the options, one a line; and whether there are any.
function __fish_csalock_operands
    set -l valued --also --attempts --backoff --command --conflict-exit-code --handle --id --if-version --interval --kill-after --label --lines --max-hold --mode --on-lost --pid --since --slots --store --timeout --token --ttl -E -c -j -w
    set -l words (commandline -opc)
    set -e words[1..2]
    while set -q words[1]
        if test "$words[1]" = --
            set -e words[1]
            break
        else if contains -- $words[1] $valued
            set -e words[1]
        else if not string match -q -- '-*' $words[1]
            break
        end
        set -e words[1]
    end
    set -q words[1]
    and printf '%s\n' $words
end

# The locks of the store that is meant. Names that need escapes to be shown are left out.
function __fish_csalock_live
    set -l words (commandline -opc)
    set -l store
    set -l at (contains -i -- --store $words)
    and set store --store $words[(math $at + 1)]
    set at (string match -- '--store=*' $words)
    and set store $at[1]
    csalock status $store -1 2>/dev/null | string match -rv '\\\\'
end

# A command with its own completions, after the name.
function __fish_csalock_job
    set -l words (__fish_csalock_operands)
    set -e words[1]
    test "$words[1]" = --
    and set -e words[1]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end

for command in unlock status list history renew get put del unclaim lookup
    complete -c csalock -n "__fish_csalock_using_subcommand $command" -f -a '(__fish_csalock_live)'
end
for command in run-with-lock run
    complete -c csalock -n "__fish_csalock_using_subcommand $command; and __fish_csalock_operands >/dev/null" \
        -f -a '(__fish_csalock_job)'
end
