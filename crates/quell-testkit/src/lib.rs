//! Servers and tools that the tests of several crates start: [processes](process), [`Redis`](redis), [`Etcd`](etcd),
//! [certificates], a [proxy] that injects faults, and how tests [wait].
//!
//! Everything here panics where a test cannot go on, and says what to install if a program is missing. Nothing
//! here knows Quell.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking"
)]

pub mod certificates;
pub mod etcd;
pub mod files;
pub mod model;
pub mod port;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod wait;
pub mod wall_clock;
