//! The processes of `csalock run` and of keepers: start, signals, time limits, detachment, and flock(2) on files.
//!
//! This layer knows no command-line arguments and writes no text for people, except the messages of its errors.

pub mod child;
pub(crate) mod cleaners;
pub mod deadline;
pub mod detach;
pub mod exec;
pub mod flock;
pub mod job;
pub mod keepalive;
pub mod schedule;
pub mod supervisor;
pub mod timer;
