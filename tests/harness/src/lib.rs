//! The harness of the suites: it runs the functions marked `#[test]`, as cargo(1)'s own harness does, and tells apart what
//! a test could not try on this machine.
//!
//! A test that lacks a program, a server or a right notes that ([`has`], [`is_root`], [`skip`]) and returns. The harness
//! then reports it as ignored, with the reason. Each suite ends with one line for each cause, and the last target of
//! `cargo test`, `untested`, prints the totals of all suites ([`totals`]). With `CI=true` a test fails if it lacks anything
//! that `.ci/run` installs.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "the harness of tests has an environment of its own"
)]

mod causes;
mod output;
mod run;
pub mod totals;

pub use causes::{abandon, has, has_all, has_namespaces, is_root, skip};
pub use harness_macros::{examples_in, test};
pub use run::{check, main, main_without};

#[doc(hidden)]
pub use {inventory, output::print};

/// A registered test.
#[derive(Debug)]
pub struct Test {
    /// The path of its module, which begins with the name of the suite.
    pub module: &'static str,
    /// The name of the function.
    pub name: &'static str,
    /// Whether it is a part of another test, which starts it with `--ignored` in a process of its own.
    pub is_part: bool,
    /// The function.
    pub run: fn(),
}

inventory::collect!(Test);

/// Registers a function; `#[test]` expands to this.
#[doc(hidden)]
#[macro_export]
macro_rules! register {
    ($name:ident, $is_part:expr) => {
        $crate::inventory::submit! {
            $crate::Test { module: ::std::module_path!(), name: ::std::stringify!($name), is_part: $is_part, run: $name }
        }
    };
}

/// Tests that differ in one value only, in a line each.
#[macro_export]
macro_rules! cases {
    ($($(#[$meta:meta])* fn $name:ident() $body:block)+) => { $($(#[$meta])* #[$crate::test] fn $name() $body)+ };
}

/// Ends the test unless this holds. [`has`] and its like note what the test lacks.
#[macro_export]
macro_rules! require {
    ($condition:expr) => {
        if !$condition {
            return;
        }
    };
}

/// Prints a line that is shown if the test fails, or with `--nocapture`.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => { $crate::print(::std::format_args!($($argument)*)) };
}

/// Prints a line that is shown if the test fails, or with `--nocapture`.
#[macro_export]
macro_rules! eprintln {
    ($($argument:tt)*) => { $crate::print(::std::format_args!($($argument)*)) };
}
