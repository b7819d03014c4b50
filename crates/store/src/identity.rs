//! Identity of stores: the locations that are one store, and the global order of stores for acquisitions.
//!
//! One directory may have several paths, for example a bind mount in a container. Callers that sort stores by their
//! paths would acquire locks in opposite orders and deadlock. The inode number is the same under each path and, on NFS,
//! on each host. Device numbers differ from host to host, so they distinguish stores but do not sort them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Location;

/// Identity of a store in files.
#[derive(PartialEq, Eq)]
struct Identity {
    is_database: bool,
    /// Inode number of the existing path or of its nearest existing ancestor, and the rest of the path.
    inode: u64,
    below: PathBuf,
    device: u64,
}

/// `None` for a store on servers: a call has at most one, which may be named in any way.
fn identity(location: &Location) -> Option<Identity> {
    let path = location.path()?;
    // A store next to files comes and goes; the directory of the files stays.
    let from = location.directory_of_files().unwrap_or(path);
    let found = from.ancestors().find_map(|ancestor| Some((ancestor, ancestor.metadata().ok()?)));
    let (ancestor, device, inode) =
        found.map_or((Path::new(""), 0, 0), |(ancestor, found)| (ancestor, found.dev(), found.ino()));
    let below = path.strip_prefix(ancestor).unwrap_or(path).to_path_buf();
    Some(Identity { is_database: matches!(location, Location::Sqlite { .. }), inode, below, device })
}

/// The stores in the global order for acquisitions, each with all of its locations.
pub fn in_order(mut locations: Vec<Location>) -> Vec<Vec<Location>> {
    locations.sort_by_cached_key(Location::place);
    locations.dedup();
    if locations.len() < 2 {
        return vec![locations];
    }
    let mut stores: Vec<(Option<Identity>, Vec<Location>)> = Vec::new();
    for location in locations {
        let identity = identity(&location);
        match stores.iter_mut().find(|(known, _)| *known == identity && identity.is_some()) {
            Some((_, paths)) => paths.push(location),
            None => stores.push((identity, vec![location])),
        }
    }
    // The sort is stable: stores on different devices with the same number stay in the order of their paths.
    stores.sort_by_cached_key(|(identity, _)| {
        let order = identity.as_ref().map(|it| (it.is_database, it.inode, it.below.clone()));
        (order.is_none(), order)
    });
    stores.into_iter().map(|(_, paths)| paths).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_with_several_paths_is_one_store() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        ["m", "z"].iter().for_each(|name| std::fs::create_dir(at(name)).unwrap());
        std::os::unix::fs::symlink(at("z"), at("a")).unwrap();
        let [a, m, z] = ["a", "m", "z"].map(|name| Location::beside(&at(name)));
        let position = |stores: &[Vec<Location>], wanted: &Location| {
            stores.iter().position(|store| store.contains(wanted)).unwrap()
        };
        // The order must not depend on whether the stores exist yet.
        for is_there in [false, true] {
            let both = in_order(vec![z.clone(), m.clone(), a.clone(), z.clone()]);
            assert_eq!(both.len(), 2);
            assert!(both.contains(&vec![a.clone(), z.clone()]), "{is_there}: {both:?}");
            for alias in [&a, &z] {
                let stores = in_order(vec![alias.clone(), m.clone()]);
                assert_eq!(position(&stores, &m), position(&both, &m), "{is_there}: {stores:?}");
            }
            ["m", "z"].iter().for_each(|name| drop(std::fs::create_dir(at(name).join(".csalock"))));
        }
    }
}
