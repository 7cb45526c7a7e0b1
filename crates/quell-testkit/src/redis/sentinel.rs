//! A primary with a replica, watched by three sentinels.

use std::time::Duration;

use super::{Options, Redis};

/// The primary, its replica, and who watches them.
#[derive(Debug)]
pub struct SentinelSetup {
    /// The primary, when it starts.
    pub primary: Redis,
    /// Its replica.
    pub replica: Redis,
    /// They call it `shop`.
    pub sentinels: Vec<Redis>,
}

impl SentinelSetup {
    /// Starts them; a primary is down when it has been silent for so long.
    pub fn start(down_after: Duration) -> Self {
        let primary = Redis::start(&[]);
        let port = primary.port();
        Self::watch(primary, port, down_after)
    }

    /// Starts a replica and sentinels of this primary, which others find at this port.
    pub fn watch(primary: Redis, port: u16, down_after: Duration) -> Self {
        let replica = Redis::start(&["--replicaof", "127.0.0.1", &port.to_string()]);
        replica.wait_for_primary();
        let millis = down_after.as_millis();
        let configuration = format!(
            "sentinel monitor shop 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds shop {millis}\n\
             sentinel failover-timeout shop {}\n",
            5 * millis
        );
        let sentinel = |_| {
            let mut options = Options::words(&["--sentinel"]);
            options.configuration.clone_from(&configuration);
            Redis::start_with(options)
        };
        let sentinels: Vec<Redis> = (0..3).map(sentinel).collect();
        for sentinel in &sentinels {
            for found in ["num-slaves\n1\n", "num-other-sentinels\n2\n"] {
                sentinel.wait_for_reply(&["SENTINEL", "MASTER", "shop"], found);
            }
        }
        Self {
            primary,
            replica,
            sentinels,
        }
    }

    /// URL of the sentinels.
    pub fn url(&self) -> String {
        let hosts = self.sentinels.iter();
        let hosts: Vec<String> = hosts
            .map(|one| format!("127.0.0.1:{}", one.port()))
            .collect();
        format!("redis+sentinel://{}/0?master=shop", hosts.join(","))
    }
}
