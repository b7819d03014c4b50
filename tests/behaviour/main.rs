//! What the program does, seen from outside: arguments, input and environment in; stdout, stderr and exit code out.
//! Every behaviour is tried on every store.

#![allow(clippy::disallowed_methods, reason = "a test is a process of its own, with clocks and children")]
#![allow(clippy::unwrap_used, reason = "in a test that is how a failure shows")]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a test that must be skipped says so")]

mod sandbox;

/// One test for each function and store: `directory::NAME` and `sqlite::NAME`.
macro_rules! on_every_store {
    ($($(#[$meta:meta])* fn $name:ident($sandbox:ident: &Sandbox) $body:block)*) => {
        $(fn $name($sandbox: &crate::sandbox::Sandbox) $body)*
        mod directory {
            $($(#[$meta])* #[test] fn $name() { super::$name(&crate::sandbox::Sandbox::new("dir:")); })*
        }
        mod sqlite {
            $($(#[$meta])* #[test] fn $name() { super::$name(&crate::sandbox::Sandbox::new("sqlite:")); })*
        }
    };
}

mod broken;
mod claims;
mod crowd;
mod csa;
mod deadlock;
mod descriptors;
mod exit_codes;
mod gc;
mod history;
mod identity;
mod lease;
mod leftovers;
mod lock;
mod modes;
mod names;
mod old_flock;
mod owner;
mod queue;
mod records;
mod referee;
mod run;
mod screen;
mod several;
mod shells;
mod signals;
mod silent_store;
mod status;
mod store_as_it_was;
mod storm;
mod terminal;
mod unlock;
mod values;
