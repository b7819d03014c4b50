//! The end of a run of all suites: what they skipped, and what to install in order to run it. cargo(1) runs the tests of
//! the packages in the order of their names, so this one comes last.

fn main() -> std::process::ExitCode {
    harness::totals::main(env!("CARGO_TARGET_TMPDIR"))
}
