//! Raw configuration: what a file, the environment and the flags say, before anything is checked.
//!
//! A file is TOML: its errors carry line and column, it has comments, and none of its values means
//! something else than it says. Rules are YAML since they are documents; settings are a flat list.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, toml_file};

/// What was said. Every field may be left out, and none that is unknown is accepted.
///
/// Durations are text such as `250ms`, `10s` or `5m`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    /// Files and directories of rules, and URLs of stores that have some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<PathBuf>>,
    /// Whether a server is ready that has a store of rules with none in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_empty_rules: Option<bool>,
    /// Address of the HTTP listener, or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Address of the RESP listener, or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resp: Option<String>,
    /// Whether addresses beyond loopback are accepted without TLS and credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,
    /// Names under which HTTP is asked beside addresses and `localhost`; `*` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_host: Option<Vec<String>>,
    /// Whether every rule is in shadow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<bool>,
    /// Where states are kept that several servers share, or `memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// How long a call to the store may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_timeout: Option<String>,
    /// Most keys with a state of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_keys: Option<usize>,
    /// Directory in which states outlive the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// How many seconds of decisions a crash may lose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_interval: Option<String>,
    /// File to which decisions are written, or `-` for standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_log: Option<String>,
    /// Every how-manieth query is written there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_log_one_in: Option<u64>,
    /// Whether keys are written there as keyed hashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_log_hash_keys: Option<bool>,
    /// Most connections of each listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,
    /// Longest body of an HTTP request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<usize>,
    /// Longest argument of a RESP command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_argument_bytes: Option<usize>,
    /// Longest RESP command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_frame_bytes: Option<usize>,
    /// Replies that a RESP connection may leave unread before its commands have to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unsent_bytes: Option<usize>,
    /// Bytes that buffers of all connections may have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_buffer_bytes: Option<usize>,
    /// How long the head of a connection's first HTTP request may take to arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_timeout: Option<String>,
    /// How long the body of an HTTP request may take to arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_timeout: Option<String>,
    /// How long an HTTP connection may be silent, or take for a later head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
    /// How long a RESP connection may leave a command half sent or a reply unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_timeout: Option<String>,
    /// How long a server that is told to stop goes on serving while clients go elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<String>,
    /// How long a shutdown waits for what is in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_grace: Option<String>,
    /// At most this much is added to `Retry-After`, drawn anew for each refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_jitter: Option<String>,
    /// Whether `/v1/authorize` also answers with `X-RateLimit-*` fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x_rate_limit_headers: Option<bool>,
    /// What is logged: a level, or levels of targets. For who writes the log; the server only tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// How it is logged: `text` or `json`. As `log`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<String>,
    /// Which headers `/v1/authorize` makes entries of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorize: Option<RawAuthorize>,
}

/// Which headers `/v1/authorize` makes entries of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawAuthorize {
    /// Whose headers are believed: `any`, `original` (nginx) or `forwarded` (Traefik, Caddy).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// What the names of headers begin with that become entries as they are; empty for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Entries made of other headers, before or in place of the gateway's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<Vec<RawEntrySource>>,
    /// Whether `/LOGIN` is `/login`: paths are read in small letters, for applications that take
    /// both for one. Default no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_case: Option<bool>,
    /// What becomes of a path with `%2F` or `%5C`: `refuse` (400), or `keep` for applications that
    /// take a path apart before they decode it. Default `refuse`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoded_slashes: Option<String>,
}

/// An entry and the headers that may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawEntrySource {
    /// The entry's name.
    pub entry: String,
    /// The headers; the first that is there counts.
    pub headers: Vec<String>,
    /// How a value is read: `plain`, `method`, `path`, `host` or `address`. Default that of the entry
    /// whose place it takes, else `plain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reading: Option<String>,
}

impl RawConfig {
    /// Reads a configuration file; `name` stands for it in errors.
    ///
    /// ```
    /// let raw = quell_server::config::RawConfig::from_toml("quell.toml", "http = 'off'")?;
    /// assert_eq!(raw.http.as_deref(), Some("off"));
    /// # Ok::<(), quell_server::config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::File`] with line and column if it is no TOML, or has an unknown field.
    pub fn from_toml(name: &str, text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| toml_file::mistake(name, text, &error))
    }

    /// The line, from 1, on which a configuration file of this `text` says `field`, such as
    /// `max_keys` or `authorize.gateway`.
    #[must_use]
    pub fn line_of(text: &str, field: &str) -> Option<usize> {
        toml_file::line_of(text, field)
    }

    /// The same as a configuration file.
    ///
    /// # Errors
    /// [`ConfigError::File`] if a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string_pretty(self).map_err(|error| ConfigError::File {
            file: "the configuration".to_owned(),
            reason: error.to_string(),
        })
    }

    /// What `self` says, and where it says nothing what `other` says: flags before the environment,
    /// that before the file.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            rules: self.rules.or(other.rules),
            allow_empty_rules: self.allow_empty_rules.or(other.allow_empty_rules),
            http: self.http.or(other.http),
            resp: self.resp.or(other.resp),
            insecure: self.insecure.or(other.insecure),
            allow_host: self.allow_host.or(other.allow_host),
            shadow: self.shadow.or(other.shadow),
            store: self.store.or(other.store),
            store_timeout: self.store_timeout.or(other.store_timeout),
            max_keys: self.max_keys.or(other.max_keys),
            data_dir: self.data_dir.or(other.data_dir),
            snapshot_interval: self.snapshot_interval.or(other.snapshot_interval),
            decision_log: self.decision_log.or(other.decision_log),
            decision_log_one_in: self.decision_log_one_in.or(other.decision_log_one_in),
            decision_log_hash_keys: self.decision_log_hash_keys.or(other.decision_log_hash_keys),
            max_connections: self.max_connections.or(other.max_connections),
            max_body_bytes: self.max_body_bytes.or(other.max_body_bytes),
            max_argument_bytes: self.max_argument_bytes.or(other.max_argument_bytes),
            max_frame_bytes: self.max_frame_bytes.or(other.max_frame_bytes),
            max_unsent_bytes: self.max_unsent_bytes.or(other.max_unsent_bytes),
            max_buffer_bytes: self.max_buffer_bytes.or(other.max_buffer_bytes),
            header_timeout: self.header_timeout.or(other.header_timeout),
            body_timeout: self.body_timeout.or(other.body_timeout),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
            stall_timeout: self.stall_timeout.or(other.stall_timeout),
            drain_timeout: self.drain_timeout.or(other.drain_timeout),
            shutdown_grace: self.shutdown_grace.or(other.shutdown_grace),
            retry_jitter: self.retry_jitter.or(other.retry_jitter),
            x_rate_limit_headers: self.x_rate_limit_headers.or(other.x_rate_limit_headers),
            log: self.log.or(other.log),
            log_format: self.log_format.or(other.log_format),
            authorize: self.authorize.or(other.authorize),
        }
    }
}
