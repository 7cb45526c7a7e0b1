//! The coordinator with real configuration stores: each test starts its own, on free ports of this
//! machine, and stops it; without `etcd` and `etcdctl` it fails and says so.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking"
)]

mod admin;
mod codec;
mod conformance;
mod etcd;
mod etcd_overrides;
mod faulty;
mod fleet_service;
mod insiders;
mod leader;
mod limits;
mod memory;
mod overrides;
mod paused;
mod process;
mod reopened;
mod restore;
mod rules;
mod session;
mod steady;
