//! The protocol, explored: every order of steps, crashes, lost replies, stale reads and leases that end, in small worlds.
//!
//! What decides is the product's own `lock::decide`, and what is stored are the product's own bytes; the model adds what is
//! around it: actors who read, find out, decide and swap in any order ([`step`], [`asking`]), and a world that interferes.
//! What must be so in every state is in [`promises`], the worlds are in [`worlds`], and [`planted`] shows that each promise
//! can be seen broken. The steps of two stores are models of their own: [`etcd`], [`sqlite`]. The directory store's are
//! explored with its real code, in its unit tests (`src/store/directory/model.rs`).
//!
//! `CSALOCK_MODEL=full` explores the same worlds with more going wrong in them, which takes an hour or more. How many states
//! there are is printed; `--nocapture` shows it.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "the number of states")]
#![allow(clippy::disallowed_methods, reason = "how much is explored is said in the environment")]

mod actor;
mod asking;
mod clocks;
mod etcd;
mod explore;
mod facts;
mod mutants;
mod promises;
mod sqlite;
mod state;
mod step;
mod storage;
mod world;
mod worlds;
