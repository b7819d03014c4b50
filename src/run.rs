//! The processes of `csalock run` and of keepers: start, signals, time limits, detachment, and flock(2) on files.
//!
//! This layer knows no command-line arguments and writes no text for people, except the messages of its errors.

pub mod child;
pub mod detach;
pub mod exec;
pub mod flock;
pub mod guarded_command;
pub mod keeper;
pub mod shared_lease_end;
pub mod supervisor;
pub mod timer;
pub mod tree;
