//! Configuration: the [table](quell_host::config) of all settings. [`RawConfig`] is what was written, [`Config`] what
//! it means. `docs/cli.md` and `--print-config` are generated from the table.
//!
//! A file is TOML: its errors have line and column, it has comments, and no value is converted to another
//! type. Rules are YAML since they are documents; settings are a flat list.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderName;
use ipnet::IpNet;
use quell::override_store::DEFAULT_MAX_OVERRIDES;
use quell::store::memory::DEFAULT_MAX_KEYS;
use quell_fleet::agent::CoordinatorUrl;
use quell_host::address::Address;
use quell_host::config::{
    self, ConfigError, RawSettings, Setting, SettingValue, at_least, field, host_names,
    no_shorter_than,
};
use quell_host::fleet_member::FleetMember;
use quell_host::rule_source::RuleSource;
use quell_host::secret_source::SecretSource;
use quell_host::settings;
use quell_protocol::resp::FrameLimits;
use quell_redis::{DEFAULT_TIMEOUT, StoreUrl};

mod authorize;
mod envoy_headers;
mod envoy_xds;
mod fleet;
mod listeners;
mod log_target;
mod otlp;
#[cfg(test)]
mod toml_mistakes;

pub use authorize::{Authorize, AuthorizeSettings, EntrySources, RawAuthorize, RawEntrySource};
pub use envoy_headers::{EnvoyHeaders, NearLimit, StatsdAddress};
pub use envoy_xds::{XdsMetadata, XdsUrl};
pub use log_target::LogTarget;
pub use otlp::OtlpEndpoint;

/// Shorter timeouts would end sound clients.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);

/// Shorter intervals would write without a pause.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// A client that connects again more often than this does little else.
const MIN_CONNECTION_AGE: Duration = Duration::from_secs(1);

settings! {
    /// Everything that a server needs to know before it starts.
    Config;
    /// Settings as written. Every field may be left out, and none that is unknown is accepted.
    ///
    /// Durations are text such as `250ms`, `10s` or `5m`.
    RawConfig: |raw: RawConfig| raw, "";

    "Rules" {
        /// A rules file, a directory of rules files, the URL of a store with rules, as in --store,
        /// etcd://HOST:2379/NAME or file://DIRECTORY, or fleet: the rules that coordinators distribute; may
        /// be repeated (in the variable: with commas)
        ///
        /// Default none: `CL.THROTTLE` needs no rules.
        rules<SOURCE>: Vec<RuleSource> = Vec::new();
        /// Be ready even if the store of rules has no rules at the start
        ///
        /// Default no: every query would be answered by 404.
        allow_empty_rules<BOOL>: bool = false;
        /// Put every rule in shadow: evaluated and reported, but never refuses
        shadow<BOOL>: bool = false;
    }
    "Listeners" {
        /// Listener for HTTP: an address, unix:PATH for a Unix socket, or off
        ///
        /// Default loopback: people try that first, and only this machine can reach it.
        http<ADDR>: Option<Address> = Some(loopback(8080));
        /// Listener for RESP (the protocol of Redis): an address, unix:PATH, or off
        ///
        /// Default beside a Redis on 6379.
        resp<ADDR>: Option<Address> = Some(loopback(6380));
        /// Listener for administration by HTTP (rules, bans, keys and metrics): an address, unix:PATH, or
        /// off
        ///
        /// The HTTP listener then has these no more. Default off: one port is simpler, and roles keep
        /// callers apart.
        admin<ADDR>: Option<Address> = None;
        /// Listener for Envoy's rate limit service (gRPC): an address, unix:PATH, or off
        ///
        /// Default off: only who runs Envoy needs it.
        envoy<ADDR>: Option<Address> = None;
        /// Serve the console, pages for people, at /console of the listener with administration
        ///
        /// Default yes: its pages ask for what the routes of administration ask for.
        console<BOOL>: bool = true;
        /// The header by which a proxy that has authenticated a person names them to the console; it counts
        /// beside a token with the role proxy alone, as X-Quell-Token
        ///
        /// Default none: people log in by their passwords.
        console_user_header<NAME>: Option<HeaderName> = None;
        /// An address, or a network such as 10.0.0.0/8, from which alone --console-user-header counts; may be
        /// repeated (in the variable: with commas)
        ///
        /// Default any: the token says who is a proxy, also over a Unix socket.
        console_proxy<NETWORK>: Vec<IpNet> = Vec::new();
        /// Permissions of Unix sockets, in octal digits: who may write may connect
        ///
        /// Default the server's user and group: whoever else has to connect is made a member.
        unix_mode<MODE>: UnixMode = UnixMode::default();
        /// The certificate that the listeners show, as a PEM file, with those that signed it after it; read
        /// again when it changes
        ///
        /// Default none: the listeners do not speak TLS.
        tls_cert<FILE>: Option<PathBuf> = None;
        /// The private key of the certificate, as a PEM file
        tls_key<FILE>: Option<PathBuf> = None;
        /// The authorities whose certificates clients may show in place of a token, as a PEM file
        ///
        /// Default none: clients show tokens.
        tls_client_ca<FILE>: Option<PathBuf> = None;
        /// A listener that speaks no TLS although there is a certificate: http, resp, admin or envoy; may be
        /// repeated (in the variable: with commas)
        ///
        /// Default none: probes and scrapers of a cluster often ask in the clear.
        plain<LISTENER>: Vec<String> = Vec::new(), listeners::check_plain;
        /// Accept addresses beyond loopback without TLS or without credentials
        insecure<BOOL>: bool = false;
        /// A file with the tokens that callers have to show, or env:NAME for a variable with the text of
        /// one; read again when it changes
        ///
        /// Default none: everybody who reaches a listener may do everything.
        credentials<SOURCE>: Option<SecretSource> = None;
        /// A host name that HTTP answers to, beside addresses and localhost; * for any; may be repeated
        /// (in the variable: with commas)
        ///
        /// Default none: a web page whose name points here is refused.
        allow_host<NAME>: Vec<String> = Vec::new(), host_names;
    }
    "State" {
        /// Store of the states: memory, or a store that several servers share:
        /// redis://\[USER:PASSWORD@]HOST:PORT/DATABASE, redis+sentinel://HOST,HOST/DATABASE?master=NAME,
        /// redis+cluster://HOST,HOST; rediss for TLS
        ///
        /// Default in memory: each server counts by itself.
        store<URL>: Option<StoreUrl> = None;
        /// Longest time of a call to the store
        ///
        /// Default 50 ms: no request should hang on a limit for longer.
        store_timeout<DURATION>: Duration = DEFAULT_TIMEOUT, no_shorter_than(MIN_TIMEOUT);
        /// Most keys with a state of their own; further ones share states
        ///
        /// Default 10 million: when full 0.4 GB of token or leaky buckets, 1.3 to 1.6 GB of windows
        /// or logs.
        max_keys<N>: usize = DEFAULT_MAX_KEYS, at_least(1);
        /// Most overrides of single keys in their store; what would add further ones is refused. For the nodes of a
        /// fleet that of the coordinators counts
        ///
        /// Default 2 million: 1.2 GB on a disk or 0.5 GB in a Redis, and all of them are there when a server begins
        /// to answer.
        max_overrides<N>: usize = usize::try_from(DEFAULT_MAX_OVERRIDES).unwrap_or(usize::MAX), at_least(1);
        /// A directory for snapshots of states and bans in this process, for overrides of single keys, and for the
        /// console's charts and changes, so that they survive a restart; without it they do not
        ///
        /// Default none: after a restart every key in memory is fresh.
        data_dir<DIR>: Option<PathBuf> = None;
        /// Time between snapshots: a crash loses at most that much, a clean stop nothing
        ///
        /// Default 10 s: writing 10 million keys takes a second, and a crash forgets few calls.
        snapshot_interval<DURATION>: Duration = Duration::from_secs(10), no_shorter_than(MIN_INTERVAL);
    }
    "Fleet" {
        /// A coordinator of the fleet that this server is a node of: http://HOST:PORT, or https for TLS;
        /// may be repeated (in the variable: with commas)
        ///
        /// Default none: rules that say `rung: shares` are refused.
        fleet<URL>: Vec<CoordinatorUrl> = Vec::new();
        /// The node's number, which no other node has: digits, or a name that ends with them, such as
        /// quell-3
        fleet_member<NAME>: Option<FleetMember> = None;
        /// The node's weight: its part of each limit is by it
        ///
        /// Default 1: all nodes are alike.
        fleet_weight<N>: usize = 1, at_least(1);
        /// A group that the node is in; may be repeated (in the variable: with commas). Rules with this `group`
        /// are shared by its nodes alone, and other nodes refuse calls on them
        ///
        /// Default none: besides that of all nodes.
        fleet_group<NAME>: Vec<String> = Vec::new();
        /// A file with the token that the node shows to coordinators, or env:NAME for a variable with it;
        /// the file is read again for each connection
        fleet_token<SOURCE>: Option<SecretSource> = None;
        /// The authorities that vouch for coordinators, as a PEM file
        ///
        /// Default those of the system.
        fleet_ca<FILE>: Option<PathBuf> = None;
        /// The certificate that the node shows to coordinators, as a PEM file
        fleet_cert<FILE>: Option<PathBuf> = None;
        /// The private key of that certificate, as a PEM file
        fleet_key<FILE>: Option<PathBuf> = None;
        /// A file in which the node keeps the share that it starts with while no coordinator answers
        ///
        /// Default `fleet` in `data_dir`; without that none: it starts with nothing.
        fleet_state<FILE>: Option<PathBuf> = None;
    }
    "Logs" {
        /// A file to which decisions are written, as lines of JSON; - for standard output, /dev/stderr
        /// for standard error; without it: nowhere
        ///
        /// Default nowhere: each line costs more than its decision.
        decision_log<FILE>: Option<LogTarget> = None;
        /// Write every N-th decision
        decision_log_one_in<N>: NonZeroU64 = NonZeroU64::MIN;
        /// Write keys as keyed hashes
        ///
        /// Default no: a log without keys explains little.
        decision_log_hash_keys<BOOL>: bool = false;
        /// Level of the log on standard error: error, warn, info, debug, trace, or TARGET=LEVEL with
        /// commas
        ///
        /// For the program that writes the log; the server emits events.
        log<LEVEL>: String = "info".to_owned();
        /// Format of the log: text or json
        ///
        /// As `log`.
        log_format<FORMAT>: String = "text".to_owned();
    }
    "Traces" {
        /// Collector of traces: its address for OTLP over gRPC, such as http://127.0.0.1:4317; off for none
        ///
        /// Default nowhere: a span names a caller's domain and rule to another program.
        otlp_endpoint<URL>: Option<OtlpEndpoint> = None;
        /// Answers that took at least this long always have a span
        ///
        /// Default 10 ms: ten times what a store nearby needs, and a fifth of the store's timeout.
        trace_slower_than<DURATION>: Duration = Duration::from_millis(10);
        /// One in N of the other answers has a span; 0 for none of them
        ///
        /// Default none: they are most of all answers, and tell least.
        trace_one_in<N>: usize = 0;
    }
    "Bounds" {
        /// Most connections of each listener
        ///
        /// A client beyond that gets an error. Default 10,000, as in Redis: idle connections take a few
        /// kilobytes each.
        max_connections<N>: usize = 10_000, at_least(1);
        /// Most connections of one address, or one /64 of IPv6, on each listener; 0 for any number
        ///
        /// Default 5,000, half of max_connections: no gateway has as many questions in flight, and an
        /// address that opens connections without end leaves the other half. This machine's own count, too.
        max_connections_per_address<N>: usize = 5_000;
        /// Failed logins of one address, or one /64 of IPv6, in a minute beyond which each closes its
        /// connection; 0 for any number
        ///
        /// A failed login is a token that is not among the credentials. Default 60: a program with an old
        /// token that tries once a second is told so each time.
        failed_logins_per_minute<N>: usize = 60;
        /// Longest body of an HTTP request
        ///
        /// Default 256 KiB: 16 descriptors of 64 short entries are a tenth of it.
        max_body_bytes<BYTES>: usize = 256 * 1_024, at_least(64);
        /// Longest argument of a RESP command
        ///
        /// Default 64 KiB: keys are names, not documents.
        max_argument_bytes<BYTES>: usize = 64 * 1_024, at_least(64);
        /// Longest RESP command
        ///
        /// Default 256 KiB: what a half-sent command may hold.
        max_frame_bytes<BYTES>: usize = 256 * 1_024, at_least(1_024);
        /// Unread replies of a RESP connection beyond which its commands have to wait
        ///
        /// In bytes. Default 1 MiB: with what the kernel holds, a client can send a hundred thousand
        /// commands before it reads the first reply; one that reads as it writes can send any number.
        max_unsent_bytes<BYTES>: usize = 1_024 * 1_024, at_least(1_024);
        /// Most bytes in the buffers of all connections together
        ///
        /// For half-sent commands and bodies and unread replies; a connection that would need more gets
        /// an error and is closed. One address may have half. Default 256 MiB: a thousand of the longest
        /// commands, or a quarter of a small machine.
        max_buffer_bytes<BYTES>: usize = 256 * 1_024 * 1_024, at_least(64 * 1_024);
        /// Longest time in which the head of an HTTP request must arrive
        ///
        /// For the first request of a connection it counts from accept on. Default 10 s: a slow phone
        /// needs two, and a client that connects has something to send.
        header_timeout<DURATION>: Duration = Duration::from_secs(10), no_shorter_than(MIN_TIMEOUT);
        /// Longest time in which the body of an HTTP request must arrive
        ///
        /// Default 10 s, for the same reason.
        body_timeout<DURATION>: Duration = Duration::from_secs(10), no_shorter_than(MIN_TIMEOUT);
        /// Longest silence of an HTTP connection
        ///
        /// Its next head may take as long to arrive, and an answer may stay unread for as long. Default
        /// 75 s, the keep-alive time of nginx: the server must not close a connection before its gateway
        /// does.
        idle_timeout<DURATION>: Duration = Duration::from_secs(75), no_shorter_than(MIN_TIMEOUT);
        /// Longest time for which a RESP connection may leave a command half sent or a reply unread
        ///
        /// Between commands it may be silent for ever, as with Redis, since clients keep pools.
        stall_timeout<DURATION>: Duration = Duration::from_secs(60), no_shorter_than(MIN_TIMEOUT);
        /// Longest drain after a signal to stop: the server serves, but is not ready, until calls stop
        /// and connections are closed
        ///
        /// Default 5 s: gateways check every few seconds whether a server is ready.
        drain_timeout<DURATION>: Duration = Duration::from_secs(5);
        /// Longest time for which a shutdown waits for requests in flight
        ///
        /// This is after the drain. Default 10 s: well within the 30 s that container platforms give.
        shutdown_grace<DURATION>: Duration = Duration::from_secs(10);
    }
    "Envoy (--envoy)" {
        /// A file, or a directory of files, with limits in the format of envoyproxy/ratelimit
        ///
        /// Default none: the limits are those of --rules.
        envoy_config<DIR>: Option<PathBuf> = None;
        /// A control plane that sends these limits by xDS: http://HOST:PORT, or https for TLS
        ///
        /// Default none.
        envoy_xds<URL>: Option<XdsUrl> = None;
        /// Do not start while these limits cannot be found, or the control plane has sent none
        ///
        /// Default yes: without limits every call would pass.
        envoy_needs_config<BOOL>: bool = true;
        /// The id of this server as a node of the control plane
        ///
        /// Default as there (`CONFIG_GRPC_XDS_NODE_ID`).
        envoy_xds_node<ID>: String = "default".to_owned();
        /// Metadata of the node, as KEY=VALUE; may be repeated (in the variable: with commas)
        envoy_xds_metadata<PAIR>: Vec<XdsMetadata> = Vec::new();
        /// A file with header fields that are shown to the control plane, as NAME:VALUE on lines or with commas, or
        /// env:NAME for a variable with them; the file is read again for each connection
        envoy_xds_headers<SOURCE>: Option<SecretSource> = None;
        /// The authorities that vouch for the control plane, as a PEM file
        ///
        /// Default those of the system.
        envoy_xds_ca<FILE>: Option<PathBuf> = None;
        /// The certificate that is shown to the control plane, as a PEM file; read again for each connection
        envoy_xds_cert<FILE>: Option<PathBuf> = None;
        /// The private key of that certificate, as a PEM file
        envoy_xds_key<FILE>: Option<PathBuf> = None;
        /// The name that the control plane's certificate has to have
        ///
        /// Default the host of the URL.
        envoy_xds_san<NAME>: Option<String> = None;
        /// Let several of these files or resources have descriptors of one domain
        ///
        /// Default no, as there (`MERGE_DOMAIN_CONFIG`).
        envoy_merge_domains<BOOL>: bool = false;
        /// Treat all of these limits as quotas: a call is refused only if all of its quotas are used up
        ///
        /// Default no: `quota_mode` of a descriptor says so for one.
        envoy_quota<BOOL>: bool = false;
        /// Answer with dynamic metadata: what was asked, and the `metadata` of limits that passed
        ///
        /// Default no, as there (`RESPONSE_DYNAMIC_METADATA`).
        envoy_metadata<BOOL>: bool = false;
        /// Share of a limit from which its statistics count hits as near to it
        ///
        /// Default 0.8, as there (`NEAR_LIMIT_RATIO`).
        envoy_near_limit<RATIO>: NearLimit = NearLimit::default();
        /// A name (DNS or URI) in the certificates of clients of this listener, or * for any that tls_client_ca
        /// vouches for; others are refused; may be repeated (in the variable: with commas)
        ///
        /// Default none: clients are told apart by credentials, if there are any.
        envoy_client<NAME>: Vec<String> = Vec::new();
        /// Age at which a connection of Envoy is told to end, so that it comes to another server of a balancer;
        /// up to a tenth more or less
        ///
        /// Default none: a connection stays until the server stops.
        envoy_max_connection_age<DURATION>: Option<Duration> = None, check_connection_age;
        /// A statsd (HOST:PORT, over TCP) that gets the statistics of --envoy-config under the names of
        /// envoyproxy/ratelimit
        ///
        /// Default none: they are on /metrics.
        envoy_statsd<ADDR>: Option<StatsdAddress> = None;
        /// Time between two messages to it
        ///
        /// Default 10 s, as there (`STATS_FLUSH_INTERVAL`).
        envoy_statsd_interval<DURATION>: Duration = Duration::from_secs(10), no_shorter_than(MIN_INTERVAL);
        /// A file with the secret that signs reservations of rules with `reserve`, or env:NAME for a variable with it;
        /// servers of one store have the same. Secrets in further lines only verify, and a change is followed
        ///
        /// Default one that each start makes; beside a store such rules are refused without it.
        envoy_secret<SOURCE>: Option<SecretSource> = None;
        /// Header fields that Envoy adds to answers: draft (RateLimit-Policy and RateLimit), ratelimit
        /// (RateLimit-Limit, -Remaining and -Reset), x-ratelimit, three names of one's own with commas, or
        /// off; all but off with Retry-After
        ///
        /// Default as /v1/authorize answers.
        envoy_headers<FIELDS>: EnvoyHeaders = EnvoyHeaders::default();
    }
    "Gateways (/v1/authorize)" {
        /// At most this much is added to Retry-After, drawn anew for each refusal
        ///
        /// Default none: what the header says is then exactly when the call passes.
        retry_jitter<DURATION>: Duration = Duration::ZERO;
        /// Answer with X-RateLimit-* fields, too
        ///
        /// That is `/v1/authorize`. Default no: no two servers mean the same by them.
        x_rate_limit_headers<BOOL>: bool = false;
        /// Headers that `/v1/authorize` makes entries of: a table of its own
        authorize: Authorize = Authorize::default();
    }
}

/// Refuses an age that a connection has before it is of use.
fn check_connection_age(age: &Option<Duration>) -> Result<(), String> {
    let Some(age) = age else { return Ok(()) };
    no_shorter_than(MIN_CONNECTION_AGE)(age)
        .map_err(|reason| format!("{reason}, or leave it out, so that connections stay"))
}

/// The default address of a listener.
const fn loopback(port: u16) -> Address {
    Address::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
}

impl Config {
    /// Returns true if there are limits in the format of envoyproxy/ratelimit.
    pub(crate) const fn has_envoy_limits(&self) -> bool {
        self.envoy_config.is_some() || self.envoy_xds.is_some()
    }

    /// The bounds of a RESP frame.
    pub(crate) fn frame_limits(&self) -> FrameLimits {
        FrameLimits {
            max_bulk: self.max_argument_bytes,
            max_line: self.max_argument_bytes,
            max_frame: self.max_frame_bytes,
            ..FrameLimits::default()
        }
    }
}

impl RawSettings for RawConfig {
    fn settings() -> Vec<Setting<Self>> {
        let mut settings = Self::flags();
        settings.extend(RawAuthorize::flags());
        settings
    }
}

impl RawConfig {
    /// Reads a configuration file; `name` stands for it in errors.
    ///
    /// ```
    /// let raw = quell_server::config::RawConfig::from_toml("quell.toml", "http = 'off'")?;
    /// assert_eq!(raw.http.as_deref(), Some("off"));
    /// # Ok::<(), quell_host::config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::File`] with line and column if it is no TOML, or has an unknown field.
    pub fn from_toml(name: &str, text: &str) -> Result<Self, ConfigError> {
        config::parse(name, text)
    }

    /// The same as a configuration file.
    ///
    /// # Errors
    /// [`ConfigError::File`] if a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        config::write(self)
    }

    /// Resolves the settings, with a default for each field that is left out.
    ///
    /// # Errors
    /// [`ConfigError::Field`] for the first value that is impossible.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let config = self.read()?;
        listeners::check(self, &config)?;
        fleet::check(&config)?;
        envoy_xds::check(&config)?;
        config::check_user_header(
            config.console_user_header.is_some(),
            !config.console_proxy.is_empty(),
            config.credentials.is_some(),
        )?;
        let (argument, frame) = (config.max_argument_bytes, config.max_frame_bytes);
        if argument > frame {
            let key = match self.max_argument_bytes {
                None => "max_frame_bytes",
                Some(_) => "max_argument_bytes",
            };
            let reason = format!(
                "an argument of {argument} bytes (max_argument_bytes) does not fit into a frame of \
                 {frame} (max_frame_bytes): write a smaller one, or a larger frame"
            );
            return Err(field(key, reason));
        }
        Ok(config)
    }
}

/// Permissions of a file, for its owner, its group and others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixMode(u32);

impl UnixMode {
    /// The bits, as `chmod` takes them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Owner and group may read and write.
impl Default for UnixMode {
    fn default() -> Self {
        Self(0o660)
    }
}

impl SettingValue for UnixMode {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        let bits = u32::from_str_radix(raw, 8).ok();
        bits.filter(|bits| *bits <= 0o777).map(Self).ok_or_else(|| {
            let reason = format!("`{raw}` is no mode of a file: write octal digits such as 0660");
            field(key, reason)
        })
    }

    fn to_raw(&self) -> Option<String> {
        Some(format!("{:04o}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::http::Reading;

    use super::*;

    #[test]
    fn empty_equals_default() {
        assert_eq!(RawConfig::default().resolve(), Ok(Config::default()));
        let empty = RawConfig::from_toml("quell.toml", "").unwrap();
        assert_eq!(empty.resolve(), Ok(Config::default()));
    }

    #[test]
    fn what_is_shown_is_what_it_was_resolved_from() {
        let text = "
            rules = ['a.yaml', 'redis+cluster://h:1,i:2/0', 'rules.d']
            http = 'off'
            resp = '127.0.0.1:0'
            admin = 'unix:/run/quell.sock'
            unix_mode = '0600'
            allow_host = ['quell.internal']
            decision_log = '-'
            decision_log_one_in = 10
            stall_timeout = '1.5s'
            [authorize]
            gateway = 'forwarded'
            trusted_proxies = ['10.0.0.0/8', '192.0.2.1']
            hops = 2
            entries = [{ entry = 'tenant', headers = ['X-Tenant'] }]
        ";
        let config = RawConfig::from_toml("quell.toml", text).unwrap().resolve();
        let config = config.unwrap();
        assert_eq!(config.authorize.map.entries.len(), 5);
        let shown = config.to_raw().to_toml().unwrap();
        let again = RawConfig::from_toml("shown", &shown).unwrap().resolve();
        assert_eq!(again, Ok(config), "{shown}");
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, expected) in [
            ("prot = 1", "unknown field `prot`"),
            ("http = 1", "invalid type"),
            (
                "http = 'nowhere'",
                "http: `nowhere` is not an address: write one such as 127.0.0.1:8080",
            ),
            ("resp = '0.0.0.0:1'", "say --insecure"),
            (
                "data_dir = '~/quell'",
                "data_dir: `~` is not expanded in `~/quell`: write the full path",
            ),
            (
                "rules = ['~/a.yaml']",
                "rules: `~` is not expanded in `~/a.yaml`",
            ),
            ("decision_log = '~/log'", "in `~/log`: write the full path"),
            ("allow_host = ['[::1]']", "addresses are always answered"),
            ("allow_host = ['http://a']", "without scheme and port"),
            ("rules = ['redis://me@h']", "rules: the login is incomplete"),
            ("http = 'off'\nresp = 'off'", "http and resp are both off"),
            ("max_keys = 0", "max_keys: 0 is too small: write at least 1"),
            ("idle_timeout = '5'", "idle_timeout: `5` has no unit"),
            ("idle_timeout = '1ms'", "write at least 10ms"),
            (
                "envoy_max_connection_age = '0s'",
                "is too short: write at least 1s, or leave it out",
            ),
            ("envoy_max_connection_age = '999ms'", "at least 1s"),
            ("max_argument_bytes = 300000", "does not fit into a frame"),
            (
                "max_frame_bytes = 2000",
                "max_frame_bytes: an argument of 65536 bytes (max_argument_bytes) does not fit into a frame of 2000",
            ),
            (
                "decision_log = '-'\ndecision_log_one_in = 0",
                "write 1 for all",
            ),
        ] {
            assert_mistake(text, expected);
        }
    }

    #[test]
    fn mistakes_about_gateways_say_what_to_write() {
        for (text, expected) in [
            (
                "[authorize]\ngateway = 'f5'",
                "write one of any, original, forwarded",
            ),
            (
                "[authorize]\nentries = [{entry = 'a', headers = ['x a']}]",
                "authorize.entries: `x a` is not the name of a header",
            ),
            (
                "[authorize]\nentries = [{entry = 'a', headers = ['']}]",
                "a header has an empty name",
            ),
            (
                "[authorize]\nentries = [{entry = 'a', headers = ['x-a']}, {entry = 'a', headers = ['x-b']}]",
                "authorize.entries: `a` appears twice: write one, with all of its headers",
            ),
            (
                "[authorize]\nentries = [{entry = 'a', headers = ['x-a'], reading = 'ip'}]",
                "write one of plain, method, path, host, address",
            ),
            (
                "[authorize]\nprefix = 'x-quell-*'",
                "authorize.prefix: `x-quell-*` is not the name of a header",
            ),
            (
                "[authorize]\ntrusted_proxies = ['proxy']",
                "authorize.trusted_proxies: \"proxy\" is no network: write an address such as",
            ),
            (
                "[authorize]\nhops = 33",
                "authorize.hops: at most 32 proxies are followed: write how many",
            ),
            (
                "[authorize]\nencoded_slashes = 'drop'",
                "authorize.encoded_slashes: unknown value `drop`: write one of refuse, keep",
            ),
        ] {
            assert_mistake(text, expected);
        }
    }

    #[test]
    fn mistakes_of_listeners_say_what_to_write() {
        for (text, expected) in [
            ("admin = '0.0.0.0:1'", "admin: `0.0.0.0:1` can be reached"),
            ("resp = 'unix:'", "127.0.0.1:8080 or unix:/run/quell.sock"),
            (
                "unix_mode = '0668'",
                "unix_mode: `0668` is no mode of a file: write",
            ),
            ("unix_mode = '7777'", "unix_mode: `7777` is no mode"),
            (
                "http = '0.0.0.0:1'",
                "there are no TLS and no credentials: write tls_cert, tls_key and credentials",
            ),
            (
                "http = '0.0.0.0:1'\ncredentials = 'a'",
                "there is no TLS: write tls_cert and tls_key, or a loopback",
            ),
            (
                "http = '0.0.0.0:1'\ntls_cert = 'a'\ntls_key = 'b'",
                "there are no credentials: write credentials, or a loopback",
            ),
            ("tls_cert = 'a'", "tls_cert: a certificate is of no use"),
            ("tls_key = 'a'", "tls_key: a private key is of no use"),
            ("tls_client_ca = 'a'", "write tls_cert and tls_key as well"),
            (
                "tls_client_ca = 'a'\ntls_cert = 'b'\ntls_key = 'c'",
                "tls_client_ca: no certificate would mean anything",
            ),
        ] {
            assert_mistake(text, expected);
        }
    }

    #[track_caller]
    fn assert_mistake(text: &str, expected: &str) {
        let raw = RawConfig::from_toml("quell.toml", text);
        let error = raw.and_then(|raw| raw.resolve()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }

    #[test]
    fn a_flag_replaces_one_field_of_the_file() {
        let file =
            "shadow = true\nmax_keys = 7\n[authorize]\ngateway = 'original'\nprefix = 'x-a-'";
        let mut raw = RawConfig::from_toml("quell.toml", file).unwrap();
        for (key, value) in [("shadow", "no"), ("authorize.prefix", "x-b-")] {
            let settings = RawConfig::settings();
            let setting = settings.iter().find(|setting| setting.key == key).unwrap();
            (setting.set)(&mut raw, &[value.into()]).unwrap();
        }
        let config = raw.resolve().unwrap();
        assert!(!config.shadow);
        assert_eq!((config.max_keys, config.rules), (7, Vec::new()));
        assert_eq!(config.authorize.settings.gateway, "original");
        assert_eq!(config.authorize.map.prefix.as_deref(), Some("x-b-"));
    }

    /// The list is what flags, variables, the help and `docs/cli.md` are made of.
    #[test]
    fn settings_are_listed_with_names_help_and_default() {
        let settings = RawConfig::settings();
        let setting = |key| settings.iter().find(|setting| setting.key == key).unwrap();
        let slashes = setting("authorize.encoded_slashes");
        assert_eq!(slashes.flag(), "authorize-encoded-slashes");
        assert_eq!(slashes.variable(), "QUELL_AUTHORIZE_ENCODED_SLASHES");
        assert_eq!(slashes.default.as_deref(), Some("refuse"));
        let timeout = setting("store_timeout");
        assert_eq!(timeout.help, "Longest time of a call to the store");
        assert_eq!((timeout.heading, timeout.value_name), ("State", "DURATION"));
        assert_eq!(setting("max_keys").default.as_deref(), Some("10000000"));
        assert_eq!(setting("rules").default, None);
        assert!(settings.iter().all(|setting| setting.key != "authorize"));
    }

    /// Whoever takes the path from another header still means a path.
    #[test]
    fn an_entry_from_another_header_is_read_as_before() {
        let text = "[authorize]\nentries = [{ entry = 'path', headers = ['X-Path'] }, \
                    { entry = 'host', headers = ['x-site'], reading = 'plain' }, \
                    { entry = 'tenant', headers = ['x-tenant'] }]";
        let raw = RawConfig::from_toml("quell.toml", text).unwrap();
        let map = raw.resolve().unwrap().authorize.map;
        let reading = |name: &str| {
            map.entries
                .iter()
                .find(|e| e.entry == name)
                .unwrap()
                .reading
        };
        assert_eq!(reading("path"), Reading::Path);
        assert_eq!(reading("host"), Reading::Plain, "as it is said");
        assert_eq!(reading("tenant"), Reading::Plain);
        assert_eq!(reading("method"), Reading::Method);
    }

    #[test]
    fn beyond_loopback_needs_a_word() {
        let raw = RawConfig::from_toml("quell.toml", "http = '0.0.0.0:8080'\ninsecure = true");
        let config = raw.unwrap().resolve().unwrap();
        assert_eq!(
            config.http.map(|address| address.to_string()).as_deref(),
            Some("0.0.0.0:8080")
        );
        let safe = "http = '0.0.0.0:8080'\ntls_cert = 'a'\ntls_key = 'b'\ncredentials = 'c'";
        let config = RawConfig::from_toml("quell.toml", safe).unwrap().resolve();
        assert_eq!(config.map(|config| config.insecure), Ok(false));
    }
}
