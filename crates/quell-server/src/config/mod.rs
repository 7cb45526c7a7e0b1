//! Configuration in two stages: [`RawConfig`] is what was said, [`Config`] what that means.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use quell::store::memory::DEFAULT_MAX_KEYS;
use quell_protocol::http::AuthorizeMap;
use quell_redis::{DEFAULT_TIMEOUT, StoreUrl};

mod authorize;
mod bounds;
mod raw;
mod resolve;
mod source;
mod toml_file;

use resolve::field;

pub use bounds::Bounds;
pub use raw::{RawAuthorize, RawConfig, RawEntrySource};
pub use source::RuleSource;

/// Everything that a server needs to know before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Files, directories and stores of rules. Default none: `CL.THROTTLE` needs none.
    pub rules: Vec<RuleSource>,
    /// Whether a server is ready that has a store of rules with none in it. Default no: every question
    /// would be answered with 404.
    pub allow_empty_rules: bool,
    /// Address of the HTTP listener. Default `127.0.0.1:8080`: what people try first, and nobody
    /// but this machine can reach it.
    pub http: Option<SocketAddr>,
    /// Address of the RESP listener. Default `127.0.0.1:6380`: beside a Redis on 6379.
    pub resp: Option<SocketAddr>,
    /// Whether addresses beyond loopback are accepted without TLS and credentials. Default no.
    pub insecure: bool,
    /// Names under which HTTP is asked beside addresses and `localhost`; `*` for any. Default none: a
    /// page that has its own name point here is refused.
    pub allowed_hosts: Vec<String>,
    /// Whether every rule is in shadow. Default no.
    pub shadow: bool,
    /// Where states are kept that several servers share. Default nowhere: in memory, each for itself.
    pub store: Option<StoreUrl>,
    /// How long a call to the store may take. Default 50 ms: no request should hang on a limit for
    /// longer.
    pub store_timeout: Duration,
    /// Most keys with a state of their own. Default 10 million: when full 0.4 GB of token or
    /// leaky buckets, 1.3 to 1.6 GB of windows or logs.
    pub max_keys: usize,
    /// Directory in which states outlive the process. Default none: a restart starts afresh.
    pub data_dir: Option<PathBuf>,
    /// What a crash may lose, at most. Default 10 s: a second of writing at 10 million keys, every
    /// five seconds at the most; and a burst that comes again after a crash is a small one.
    pub snapshot_interval: Duration,
    /// Where decisions are written. Default nowhere: each line costs more than its decision.
    pub decision_log: Option<DecisionLog>,
    /// Bounds on what clients may take.
    pub bounds: Bounds,
    /// Which headers `/v1/authorize` makes entries of. Default: those of nginx, Traefik and Caddy.
    pub authorize: AuthorizeMap,
    /// At most this much is added to `Retry-After`, drawn anew for each refusal. Default none: what
    /// the header says is then exactly when the call passes.
    pub retry_jitter: Duration,
    /// Whether `/v1/authorize` also answers with `X-RateLimit-*` fields. Default no: no two servers
    /// mean the same by them.
    pub x_rate_limit_headers: bool,
    /// What `authorize` was resolved from, for [`Config::to_raw`].
    said: RawAuthorize,
}

/// Where decisions are written, which, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionLog {
    /// Where.
    pub target: LogTarget,
    /// Every how-manieth query. Default 1: all.
    pub one_in: NonZeroU64,
    /// Whether keys are written as keyed hashes. Default no: a log without keys explains little.
    pub hash_keys: bool,
}

/// Where decisions are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// To standard output, whatever that is: a file, a terminal, a pipe.
    Stdout,
    /// To standard error.
    Stderr,
    /// To this file, at its end.
    File(PathBuf),
}

impl LogTarget {
    /// Reads a path, or a name of standard output or standard error. Those are written to as they
    /// are: in a container they are pipes, which cannot be opened once more.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "-" | "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => Self::Stdout,
            "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => Self::Stderr,
            file => Self::File(PathBuf::from(file)),
        }
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("-"),
            Self::Stderr => f.write_str("/dev/stderr"),
            Self::File(file) => file.display().fmt(f),
        }
    }
}

/// The default address of a listener.
const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The default snapshot interval.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(10);

impl Default for Config {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            allow_empty_rules: false,
            http: Some(loopback(8080)),
            resp: Some(loopback(6380)),
            insecure: false,
            allowed_hosts: Vec::new(),
            shadow: false,
            store: None,
            store_timeout: DEFAULT_TIMEOUT,
            max_keys: DEFAULT_MAX_KEYS,
            data_dir: None,
            snapshot_interval: SNAPSHOT_INTERVAL,
            decision_log: None,
            bounds: Bounds::default(),
            authorize: AuthorizeMap::default(),
            retry_jitter: Duration::ZERO,
            x_rate_limit_headers: false,
            said: RawAuthorize::default(),
        }
    }
}

/// Why there is no configuration. The text says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file is none, or says something that nothing is known of.
    #[error("{file}: {reason}")]
    File {
        /// The file, with line and column if they are known.
        file: String,
        /// What is wrong, and what to write.
        reason: String,
    },
    /// The value of a field is impossible.
    #[error("{field}: {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong, and what to write.
        reason: String,
    },
}
