//! The protocol, explored: every order of steps, crashes, lost replies, stale reads and leases that end, in small worlds.
//!
//! What decides is the product's own `lock::decide`, and what the stores keep are its own bytes; the model adds what is
//! around it: processes that look, decide and swap in any order ([`step`]), and a world that interferes. The promises
//! that must hold in every state are in [`promises`], the worlds in [`worlds`], and [`planted`] shows that each promise
//! can be seen broken.
//!
//! In CI each world is explored as far as its smaller form goes; `CSALOCK_MODEL=full` explores the larger ones. Both
//! print how many states there are with `--nocapture`.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "the number of states")]
#![allow(clippy::disallowed_methods, reason = "how much is explored is said in the environment")]

mod actor;
mod asking;
mod etcd;
mod explore;
mod facts;
mod planted;
mod promises;
mod sqlite;
mod state;
mod step;
mod storage;
mod world;
mod worlds;
