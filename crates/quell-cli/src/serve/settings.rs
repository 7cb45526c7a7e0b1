//! Settings: every flag of `quell serve` with its variable, as [`RawConfig`].
//!
//! A flag is named as its field in a configuration file, its variable too: `--max-keys`,
//! `QUELL_MAX_KEYS`, `max_keys`. A test holds the three together, and the defaults in the texts to
//! those of the server.

use std::path::PathBuf;

use clap::Args;
use quell_server::config::{RawAuthorize, RawConfig};

use super::sources;
use crate::entry;

/// What can be set.
#[derive(Debug, Default, Args)]
pub(super) struct Settings {
    /// A rules file, a directory of them, or a store that rules are pushed to, written as in --store; may be repeated (in the variable: with commas)
    #[arg(
        long,
        env = "QUELL_RULES",
        value_name = "SOURCE",
        hide_env_values = true,
        help_heading = "Rules"
    )]
    rules: Vec<PathBuf>,
    /// Be ready with a store of rules that has none yet, or lost them before the start [default: false]
    #[arg(long, env = "QUELL_ALLOW_EMPTY_RULES", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = yes_or_no, help_heading = "Rules")]
    allow_empty_rules: Option<bool>,
    /// Put every rule in shadow: it is reported, and refuses nobody [default: false]
    #[arg(long, env = "QUELL_SHADOW", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = yes_or_no, help_heading = "Rules")]
    shadow: Option<bool>,

    /// Where HTTP listens, or off [default: 127.0.0.1:8080]
    #[arg(
        long,
        env = "QUELL_HTTP",
        value_name = "ADDR",
        help_heading = "Listeners"
    )]
    http: Option<String>,
    /// Where RESP (the protocol of Redis) listens, or off [default: 127.0.0.1:6380]
    #[arg(
        long,
        env = "QUELL_RESP",
        value_name = "ADDR",
        help_heading = "Listeners"
    )]
    resp: Option<String>,
    /// Accept addresses beyond loopback, without TLS and credentials [default: false]
    #[arg(long, env = "QUELL_INSECURE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = yes_or_no, help_heading = "Listeners")]
    insecure: Option<bool>,

    /// A name under which HTTP may be asked beside addresses and localhost, or * for any; may be repeated (in the variable: with commas)
    #[arg(
        long,
        env = "QUELL_ALLOW_HOST",
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    allow_host: Vec<String>,

    /// Where states are kept that several servers share: redis://[USER:PASSWORD@]HOST:PORT/DATABASE, redis+sentinel://HOST,HOST/DATABASE?master=NAME, redis+cluster://HOST,HOST, rediss for TLS, or memory [default: memory]
    #[arg(
        long,
        env = "QUELL_STORE",
        value_name = "URL",
        hide_env_values = true,
        help_heading = "State"
    )]
    store: Option<String>,
    /// How long a call to the store may take [default: 50ms]
    #[arg(
        long,
        env = "QUELL_STORE_TIMEOUT",
        value_name = "DURATION",
        help_heading = "State"
    )]
    store_timeout: Option<String>,
    /// Most keys with a state of their own; further ones share states [default: 10000000]
    #[arg(
        long,
        env = "QUELL_MAX_KEYS",
        value_name = "N",
        value_parser = entry::whole::<usize>,
        help_heading = "State"
    )]
    max_keys: Option<usize>,
    /// A directory in which states and bans outlive the process; none: in memory only
    #[arg(
        long,
        env = "QUELL_DATA_DIR",
        value_name = "DIR",
        help_heading = "State"
    )]
    data_dir: Option<PathBuf>,
    /// How much a crash may lose, at most; a clean stop loses nothing [default: 10s]
    #[arg(
        long,
        env = "QUELL_SNAPSHOT_INTERVAL",
        value_name = "DURATION",
        help_heading = "State"
    )]
    snapshot_interval: Option<String>,

    /// A file to write decisions to, as lines of JSON; - for standard output, /dev/stderr for standard error; none: nowhere
    #[arg(
        long,
        env = "QUELL_DECISION_LOG",
        value_name = "FILE",
        allow_hyphen_values = true,
        help_heading = "Logs"
    )]
    decision_log: Option<String>,
    /// Write every N-th decision [default: 1]
    #[arg(
        long,
        env = "QUELL_DECISION_LOG_ONE_IN",
        value_name = "N",
        value_parser = entry::whole::<u64>,
        help_heading = "Logs"
    )]
    decision_log_one_in: Option<u64>,
    /// Write keys as keyed hashes [default: false]
    #[arg(long, env = "QUELL_DECISION_LOG_HASH_KEYS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = yes_or_no, help_heading = "Logs")]
    decision_log_hash_keys: Option<bool>,
    /// What is logged to standard error: error, warn, info, debug, trace, or TARGET=LEVEL with commas [default: info]
    #[arg(long, env = "QUELL_LOG", value_name = "LEVEL", help_heading = "Logs")]
    log: Option<String>,
    /// How it is logged: text or json [default: text]
    #[arg(
        long,
        env = "QUELL_LOG_FORMAT",
        value_name = "FORMAT",
        help_heading = "Logs"
    )]
    log_format: Option<String>,

    #[command(flatten)]
    bounds: BoundSettings,
    #[command(flatten)]
    gateway: GatewaySettings,
}

/// What clients may take.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Bounds")]
struct BoundSettings {
    /// Most connections of each listener [default: 10000]
    #[arg(long, env = "QUELL_MAX_CONNECTIONS", value_name = "N", value_parser = entry::whole::<usize>)]
    max_connections: Option<usize>,
    /// Longest body of an HTTP request [default: 262144]
    #[arg(long, env = "QUELL_MAX_BODY_BYTES", value_name = "BYTES", value_parser = entry::whole::<usize>)]
    max_body_bytes: Option<usize>,
    /// Longest argument of a RESP command [default: 65536]
    #[arg(long, env = "QUELL_MAX_ARGUMENT_BYTES", value_name = "BYTES", value_parser = entry::whole::<usize>)]
    max_argument_bytes: Option<usize>,
    /// Longest RESP command [default: 262144]
    #[arg(long, env = "QUELL_MAX_FRAME_BYTES", value_name = "BYTES", value_parser = entry::whole::<usize>)]
    max_frame_bytes: Option<usize>,
    /// Replies that a RESP connection may leave unread before its commands have to wait [default: 1048576]
    #[arg(long, env = "QUELL_MAX_UNSENT_BYTES", value_name = "BYTES", value_parser = entry::whole::<usize>)]
    max_unsent_bytes: Option<usize>,
    /// Bytes that buffers of all connections may have together [default: 268435456]
    #[arg(long, env = "QUELL_MAX_BUFFER_BYTES", value_name = "BYTES", value_parser = entry::whole::<usize>)]
    max_buffer_bytes: Option<usize>,
    /// How long the head of an HTTP request may take to arrive [default: 10s]
    #[arg(long, env = "QUELL_HEADER_TIMEOUT", value_name = "DURATION")]
    header_timeout: Option<String>,
    /// How long the body of an HTTP request may take to arrive [default: 10s]
    #[arg(long, env = "QUELL_BODY_TIMEOUT", value_name = "DURATION")]
    body_timeout: Option<String>,
    /// How long an HTTP connection may be silent [default: 75s]
    #[arg(long, env = "QUELL_IDLE_TIMEOUT", value_name = "DURATION")]
    idle_timeout: Option<String>,
    /// How long a RESP connection may leave a command half sent or a reply unread [default: 1m]
    #[arg(long, env = "QUELL_STALL_TIMEOUT", value_name = "DURATION")]
    stall_timeout: Option<String>,
    /// How long a server that is told to stop goes on serving, not ready, until nobody asks any more and its connections are closed [default: 5s]
    #[arg(long, env = "QUELL_DRAIN_TIMEOUT", value_name = "DURATION")]
    drain_timeout: Option<String>,
    /// How long a shutdown waits for what is in flight [default: 10s]
    #[arg(long, env = "QUELL_SHUTDOWN_GRACE", value_name = "DURATION")]
    shutdown_grace: Option<String>,
}

/// How gateways are answered.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Gateways (/v1/authorize)")]
struct GatewaySettings {
    /// Whose headers are believed: any, original (nginx) or forwarded (Traefik, Caddy) [default: any]
    #[arg(long, env = "QUELL_AUTHORIZE_GATEWAY", value_name = "KIND")]
    authorize_gateway: Option<String>,
    /// What the names of headers begin with that become entries; empty: none [default: x-quell-entry-]
    #[arg(long, env = "QUELL_AUTHORIZE_PREFIX", value_name = "PREFIX")]
    authorize_prefix: Option<String>,
    /// Read paths in small letters, for applications that take /LOGIN for /login [default: false]
    #[arg(long, env = "QUELL_AUTHORIZE_IGNORE_CASE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = yes_or_no)]
    authorize_ignore_case: Option<bool>,
    /// What becomes of a path with %2F or %5C: refuse (400) or keep, for applications that take a path apart before they decode it [default: refuse]
    #[arg(long, env = "QUELL_AUTHORIZE_ENCODED_SLASHES", value_name = "WORD")]
    authorize_encoded_slashes: Option<String>,
    /// At most this much is added to Retry-After, drawn anew for each refusal [default: 0s]
    #[arg(long, env = "QUELL_RETRY_JITTER", value_name = "DURATION")]
    retry_jitter: Option<String>,
    /// Answer with X-RateLimit-* fields, too [default: false]
    #[arg(long, env = "QUELL_X_RATE_LIMIT_HEADERS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = yes_or_no)]
    x_rate_limit_headers: Option<bool>,
}

impl Settings {
    /// What was said by flags and variables, before what a file says.
    pub(super) fn into_raw(self, file: RawConfig) -> RawConfig {
        let Self {
            bounds, gateway, ..
        } = self;
        let said_of_gateway = gateway.authorize_gateway.is_some()
            || gateway.authorize_prefix.is_some()
            || gateway.authorize_ignore_case.is_some()
            || gateway.authorize_encoded_slashes.is_some();
        let from_file = file.authorize.clone().unwrap_or_default();
        let said = RawConfig {
            rules: Some(sources::split(self.rules)).filter(|rules| !rules.is_empty()),
            allow_empty_rules: self.allow_empty_rules,
            http: self.http,
            resp: self.resp,
            insecure: self.insecure,
            allow_host: Some(self.allow_host).filter(|names| !names.is_empty()),
            shadow: self.shadow,
            store: self.store,
            store_timeout: self.store_timeout,
            max_keys: self.max_keys,
            data_dir: self.data_dir,
            snapshot_interval: self.snapshot_interval,
            decision_log: self.decision_log,
            decision_log_one_in: self.decision_log_one_in,
            decision_log_hash_keys: self.decision_log_hash_keys,
            max_connections: bounds.max_connections,
            max_body_bytes: bounds.max_body_bytes,
            max_argument_bytes: bounds.max_argument_bytes,
            max_frame_bytes: bounds.max_frame_bytes,
            max_unsent_bytes: bounds.max_unsent_bytes,
            max_buffer_bytes: bounds.max_buffer_bytes,
            header_timeout: bounds.header_timeout,
            body_timeout: bounds.body_timeout,
            idle_timeout: bounds.idle_timeout,
            stall_timeout: bounds.stall_timeout,
            drain_timeout: bounds.drain_timeout,
            shutdown_grace: bounds.shutdown_grace,
            retry_jitter: gateway.retry_jitter,
            x_rate_limit_headers: gateway.x_rate_limit_headers,
            log: self.log,
            log_format: self.log_format,
            // A table is one setting in the file and several flags: they replace field by field.
            authorize: said_of_gateway.then(|| RawAuthorize {
                gateway: gateway.authorize_gateway.or(from_file.gateway),
                prefix: gateway.authorize_prefix.or(from_file.prefix),
                entries: from_file.entries,
                ignore_case: gateway.authorize_ignore_case.or(from_file.ignore_case),
                encoded_slashes: gateway
                    .authorize_encoded_slashes
                    .or(from_file.encoded_slashes),
            }),
        };
        said.or(file)
    }
}

/// Reads a yes or a no, as variables have them.
fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("`{text}` is no yes and no no: write true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_and_no_have_several_words() {
        assert_eq!(yes_or_no("TRUE"), Ok(true));
        assert_eq!(yes_or_no("0"), Ok(false));
        assert!(
            yes_or_no("maybe")
                .unwrap_err()
                .contains("write true or false")
        );
    }

    #[test]
    fn what_is_said_counts_before_the_file() {
        let file =
            "shadow = true\nmax_keys = 7\n[authorize]\ngateway = 'original'\nprefix = 'x-a-'";
        let file = RawConfig::from_toml("quell.toml", file).unwrap();
        let settings = Settings {
            shadow: Some(false),
            gateway: GatewaySettings {
                authorize_prefix: Some("x-b-".to_owned()),
                ..GatewaySettings::default()
            },
            ..Settings::default()
        };
        let raw = settings.into_raw(file);
        assert_eq!(
            (raw.shadow, raw.max_keys, raw.rules),
            (Some(false), Some(7), None)
        );
        let authorize = raw.authorize.unwrap();
        assert_eq!(authorize.gateway.as_deref(), Some("original"));
        assert_eq!(authorize.prefix.as_deref(), Some("x-b-"));
    }
}
