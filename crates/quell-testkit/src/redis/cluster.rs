//! Clusters of three primaries, each with replicas.

use std::process::Command;

use super::{Options, Redis};
use crate::process::run;

/// A cluster.
#[derive(Debug)]
pub struct Cluster {
    /// The primaries, and after them their replicas, when it starts.
    pub servers: Vec<Redis>,
}

impl Cluster {
    /// Starts one with so many replicas of each primary, whose servers, by their numbers, have these options.
    pub fn start_by(replicas: usize, options: impl Fn(usize) -> Options) -> Self {
        let server = |number| {
            let mut options = options(number);
            options
                .words
                .extend(["--cluster-enabled", "yes"].map(str::to_owned));
            Redis::start_with(options)
        };
        let servers: Vec<Redis> = (0..3 * (1 + replicas)).map(server).collect();
        let hosts = servers
            .iter()
            .map(|one| format!("127.0.0.1:{}", one.port()));
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(hosts);
        create.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        run(&mut create).expect_success();
        for server in &servers {
            server.wait_for_reply(&["CLUSTER", "INFO"], "cluster_state:ok");
            if !server.is_primary() {
                server.wait_for_primary();
            }
        }
        Self { servers }
    }

    /// URL of the cluster. One seed is enough, whichever server it is.
    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.servers[0].port())
    }
}
