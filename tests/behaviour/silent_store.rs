//! A store that other hosts share, and that does not answer any more when the command has ended.

use crate::sandbox::{Sandbox, has, is_root, wait_until};

/// Makes the guardian hang as it changes the store, as a dead NFS server would. (It can be killed then as well, but as
/// long as strace holds it nobody sees that it has ended.)
const HANG: &str = "strace -qq -f -p $PPID -e trace=unlinkat -e inject=unlinkat:delay_enter=9s -o trace 2> strace &
                    while grep -q 'TracerPid:.0$' /proc/$PPID/status; do sleep 0.02; done
                    exit 3";

#[test]
fn does_not_keep_csalock_from_ending_with_the_status_of_the_command() {
    if !has("strace") || !is_root("to trace its parent") {
        return;
    }
    let sandbox = Sandbox::new("dir:");
    let store = format!("{}?shared=1", sandbox.store());
    let said = "csalock: lock x could not be given back: the store does not answer; it is given back when that answers \
                again, and at the latest its lease ends it\n";
    sandbox.csalock(["run", "--store", &store, "x", "sh", "-c", HANG]).status(3).stderr(said).run();
    // Its keeper lives on, and does it.
    wait_until("it is given back", || sandbox.csalock(["status", "--store", &store, "x"]).capture().code == Some(81));
}
