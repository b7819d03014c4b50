//! Exploring a world to its end, and saying how large it is.

use stateright::{Checker, HasDiscoveries, Model};

use super::state::State;
use super::world::World;

pub(crate) fn every_promise_is_kept(what: &str, world: World) {
    let started = std::time::Instant::now();
    let checker = world.clone().checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    if !checker.discoveries().is_empty() {
        // Depth first takes less memory, breadth first finds the shortest way.
        let shortest = world.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        if let Some((promise, path)) = shortest.discoveries().into_iter().next() {
            panic!("{what}: \"{promise}\" is broken by\n{}", story(path));
        }
    }
    eprintln!("model: {what}: {} states in {:?}", checker.unique_state_count(), started.elapsed());
}

/// Explores a world in which something is wrong; it must be seen that one of these promises is broken.
pub(crate) fn a_promise_is_broken(world: World, promises: &[&str]) {
    let checker = world.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found: Vec<&str> = checker.discoveries().keys().copied().collect();
    assert!(found.iter().any(|broken| promises.contains(broken)), "broken: {found:?}");
}

fn story(path: stateright::Path<State, <World as Model>::Action>) -> String {
    let mut told = String::new();
    for (state, action) in path.into_vec() {
        for (at, kept) in state.names.iter().enumerate() {
            let body = kept.now.body.as_ref().map(|body| String::from_utf8_lossy(body).into_owned());
            told += &format!("   {at}: {} {}\n", kept.now.number, body.unwrap_or_default());
        }
        let phases: Vec<_> = state.actors.iter().map(|actor| (actor.task, &actor.holds)).collect();
        told += &format!(
            "   dead {:b} over {:b} broken {:?} {phases:?}\n{action:?}\n",
            state.dead, state.over, state.broken
        );
    }
    told
}
