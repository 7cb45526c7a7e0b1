//! `INFO` and `CLIENT INFO`: facts in lines that clients parse.
//!
//! Clients read a few of them on connecting: ioredis waits until `loading` is 0, others look at
//! `redis_version` for the supported commands, or at `role`.

use std::fmt::Write;
use std::time::Duration;

use super::args::Args;
use super::encode::{Encoder, Protocol};

/// The version of Redis whose connection commands are followed. Clients compare it; ours is
/// `quell_version`.
const REDIS_VERSION: &str = "7.2.0";

/// The facts in `INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerFacts<'a> {
    /// Quell's version.
    pub version: &'a str,
    /// The process id.
    pub process_id: u32,
    /// The port on which the command arrived.
    pub port: u16,
    /// Time since the server started.
    pub uptime: Duration,
    /// Open RESP connections.
    pub connections: u64,
    /// RESP connections so far.
    pub connections_received: u64,
    /// RESP commands so far.
    pub commands_processed: u64,
    /// Keys that have a state.
    pub keys: u64,
}

impl ServerFacts<'_> {
    /// Writes the reply to `INFO [section ..]`: the requested sections, or all.
    pub fn write_reply(&self, sections: Args<'_>, encoder: &mut Encoder<'_>) {
        let mut text = String::new();
        for (section, lines) in self.sections() {
            if is_requested(sections, section) {
                if !text.is_empty() {
                    text.push_str("\r\n");
                }
                // Writing to a String cannot fail.
                let _ = write!(text, "# {section}\r\n{}\r\n", lines.replace('\n', "\r\n"));
            }
        }
        encoder.verbatim(&text);
    }

    fn sections(&self) -> [(&'static str, String); 6] {
        let seconds = self.uptime.as_secs();
        let server = format!(
            "redis_version:{REDIS_VERSION}\nquell_version:{}\nredis_mode:standalone\nprocess_id:{}\n\
             tcp_port:{}\nuptime_in_seconds:{seconds}\nuptime_in_days:{}",
            self.version,
            self.process_id,
            self.port,
            seconds / 86_400
        );
        let stats = format!(
            "total_connections_received:{}\ntotal_commands_processed:{}\nquell_keys:{}",
            self.connections_received, self.commands_processed, self.keys
        );
        [
            ("Server", server),
            ("Clients", format!("connected_clients:{}", self.connections)),
            ("Persistence", "loading:0\nasync_loading:0".to_owned()),
            ("Stats", stats),
            ("Replication", "role:master\nconnected_slaves:0".to_owned()),
            ("Cluster", "cluster_enabled:0".to_owned()),
        ]
    }
}

fn is_requested(sections: Args<'_>, section: &str) -> bool {
    const ALL: [&str; 3] = ["all", "everything", "default"];
    sections.is_empty()
        || sections.iter().any(|word| {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            is(section) || ALL.into_iter().any(is)
        })
}

/// The facts about one connection in `CLIENT INFO` and `CLIENT LIST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFacts<'a> {
    /// Its number.
    pub id: u64,
    /// The remote address, as `address:port`.
    pub remote_address: &'a str,
    /// The local address, as `address:port`.
    pub local_address: &'a str,
    /// Its name, or empty.
    pub name: &'a [u8],
    /// The name of its library, or empty.
    pub library_name: &'a [u8],
    /// The version of its library, or empty.
    pub library_version: &'a [u8],
    /// Time since the connection was opened.
    pub age: Duration,
    /// The protocol that it speaks.
    pub protocol: Protocol,
}

impl ConnectionFacts<'_> {
    /// Adds the line to `text`, with its end. The reply is `text` as verbatim text.
    pub fn write_line(&self, text: &mut String) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "id={} addr={} laddr={} name={} age={} flags=N db=0 user=default lib-name={} lib-ver={} resp={}",
            self.id,
            self.remote_address,
            self.local_address,
            String::from_utf8_lossy(self.name),
            self.age.as_secs(),
            String::from_utf8_lossy(self.library_name),
            String::from_utf8_lossy(self.library_version),
            self.protocol.number(),
        );
    }
}
