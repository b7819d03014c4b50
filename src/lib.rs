//! Locks for shell scripts.
#![deny(missing_docs)]

pub mod child;
pub mod cli;
pub mod command;
pub mod duration;
pub mod engine;
pub mod environment;
pub mod error;
pub mod exit;
pub mod glob;
pub mod host;
pub mod lock;
pub mod name;
pub mod report;
pub mod signals;
pub mod store;
