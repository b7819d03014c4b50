//! The faults of the store: a disk that is full for a while, servers that are killed or stopped.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::postgres::Server;
use crate::schedule::{Schedule, Trouble};
use crate::setup::Ground;

/// Causes failures one after the other until the end. Returns their number. It leaves none of them.
pub(crate) fn befall(ground: &Ground, schedule: &Schedule, over: &AtomicBool) -> usize {
    let sleep = |span: Duration| {
        let begun = Instant::now();
        while begun.elapsed() < span && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        let trouble = schedule.trouble(number);
        sleep(trouble.quiet);
        if ground.cluster.is_some() {
            server_is_gone(ground, &trouble, || sleep(trouble.lasts));
        } else if let Some(server) = &ground.postgres {
            postgres_is_gone(server, &trouble, || sleep(trouble.lasts));
        } else if ground.disk.is_some() {
            fill(ground, || sleep(trouble.lasts));
        } else {
            return 0;
        }
        number += 1;
    }
    number
}

fn server_is_gone(ground: &Ground, trouble: &Trouble, wait: impl Fn()) {
    let cluster = ground.cluster.as_ref().unwrap();
    let server = trouble.server % cluster.size();
    if trouble.kills {
        cluster.kill(server);
        wait();
        cluster.restart(server);
    } else {
        cluster.stop(server, true);
        wait();
        cluster.stop(server, false);
    }
    cluster.await_health();
}

fn postgres_is_gone(server: &Server, trouble: &Trouble, wait: impl Fn()) {
    if trouble.kills {
        server.kill();
        wait();
        server.restart();
    } else {
        server.stop(true);
        wait();
        server.stop(false);
    }
}

/// Fills the disk, keeps it full for a while, and makes room again.
fn fill(ground: &Ground, wait: impl Fn()) {
    let path = ground.place.join("mount/filler");
    let mut filler = std::fs::File::create(&path).ok();
    for block in [vec![1; 65536], vec![1; 1]] {
        while filler.as_mut().is_some_and(|filler| filler.write_all(&block).is_ok()) {}
    }
    wait();
    let _ = std::fs::remove_file(&path);
}
