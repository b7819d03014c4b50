//! What is true of the etcd store alone.
