//! Users of one etcd cluster: its own users and roles say who may see and who may take.

use crate::etcd::{Cluster, Setup};
use crate::sandbox::Sandbox;

#[test]
fn a_reader_in_etcd_may_see_but_not_acquire() {
    let Some(cluster) = Cluster::start(Setup { root: Some("geheim"), ..Setup::default() }) else { return };
    let sandbox = Sandbox::at(&cluster);
    cluster.add_user("writer", "wort", "p/");
    cluster.add_user("stranger", "wort", "q/");
    cluster.add_user_with_permission("reader", "wort", "read", "p/");
    let code = |user: &str, words: &[&str]| {
        let call = sandbox.csalock(words).env("CSALOCK_STORE", cluster.url("p"));
        call.env("CSALOCK_ETCD_USER", user).env("CSALOCK_ETCD_PASSWORD", "wort").capture().code.unwrap()
    };
    assert_eq!(code("writer", &["lock", "-q", "--forever", "x"]), 0);
    assert_eq!(code("writer", &["put", "y", "value"]), 0);
    let deeds: [&[&str]; 7] = [
        &["status", "-q", "x"],
        &["get", "-q", "y"],
        &["run", "-n", "z", "true"],
        &["run", "-n", "x", "true"],
        &["put", "y", "other"],
        &["unlock", "--force", "x"],
        &["claim", "z"],
    ];
    assert_eq!(deeds.map(|words| code("stranger", words)), [77; 7]);
    let reader = deeds.map(|words| code("reader", words));
    assert_eq!(reader, [0, 0, 77, reader[3], 77, 77, 77]);
    // This test itself is the owner, under any login.
    assert!(matches!(reader[3], 75 | 77 | 84), "{reader:?}");
    assert_eq!(deeds.map(|words| code("writer", words)), [0, 0, 0, 75, 0, 0, 0]);
}
