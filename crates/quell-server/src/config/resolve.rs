//! From what was said to what it means, and back.

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_redis::StoreUrl;
use quell_rules::{ExactDuration, parse_duration};

use super::raw::RawConfig;
use super::{Bounds, Config, ConfigError, DecisionLog, LogTarget, RuleSource, authorize};

/// What an address that is turned off says.
const OFF: &str = "off";

/// What a store says that is none but this process.
const MEMORY: &str = "memory";

/// An impossible value.
pub(super) fn field(field: &'static str, reason: impl Into<String>) -> ConfigError {
    let reason = reason.into();
    ConfigError::Field { field, reason }
}

impl RawConfig {
    /// What this means, with a default for all that was not said.
    ///
    /// # Errors
    /// [`ConfigError::Field`] for the first value that is impossible.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let default = Config::default();
        let insecure = self.insecure.unwrap_or(default.insecure);
        let said = self.authorize.clone().unwrap_or_default();
        let config = Config {
            rules: self.rules()?,
            allow_empty_rules: self.allow_empty_rules.unwrap_or(default.allow_empty_rules),
            http: address("http", self.http.as_deref(), default.http, insecure)?,
            resp: address("resp", self.resp.as_deref(), default.resp, insecure)?,
            insecure,
            allowed_hosts: self.allowed_hosts()?,
            shadow: self.shadow.unwrap_or(default.shadow),
            store: self.store()?,
            store_timeout: self.timeout(
                "store_timeout",
                &self.store_timeout,
                default.store_timeout,
            )?,
            max_keys: at_least("max_keys", self.max_keys, default.max_keys, 1)?,
            data_dir: self.data_dir()?,
            snapshot_interval: duration(
                "snapshot_interval",
                self.snapshot_interval.as_deref(),
                default.snapshot_interval,
                MIN_INTERVAL,
            )?,
            decision_log: self.decision_log()?,
            bounds: self.bounds()?,
            authorize: authorize::resolve(&said)?,
            retry_jitter: duration(
                "retry_jitter",
                self.retry_jitter.as_deref(),
                default.retry_jitter,
                Duration::ZERO,
            )?,
            x_rate_limit_headers: self
                .x_rate_limit_headers
                .unwrap_or(default.x_rate_limit_headers),
            said,
        };
        if config.http.is_none() && config.resp.is_none() {
            let reason = "both listeners are off, so nobody could ask: write an address for one";
            return Err(field("http", reason));
        }
        if config.store.is_some() && config.data_dir.is_some() {
            let reason = "a directory keeps states of this process, and the store keeps them for all: \
                          leave data_dir or store out";
            return Err(field("data_dir", reason));
        }
        Ok(config)
    }

    fn rules(&self) -> Result<Vec<RuleSource>, ConfigError> {
        let said = self.rules.iter().flatten();
        for path in said.clone() {
            check_home("rules", path)?;
        }
        let sources = said.map(|said| RuleSource::parse(said));
        let sources: Result<_, _> = sources.collect();
        sources.map_err(|error| field("rules", error.to_string()))
    }

    fn allowed_hosts(&self) -> Result<Vec<String>, ConfigError> {
        let said = self.allow_host.iter().flatten();
        let names = said.map(|name| {
            let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if name == "*" || (!name.is_empty() && name.bytes().all(is_of_name)) {
                return Ok(name.trim_end_matches('.').to_ascii_lowercase());
            }
            let reason = format!(
                "`{name}` is no name of a host: write one without scheme and port, such as \
                 quell.internal, or * for any; addresses are always answered"
            );
            Err(field("allow_host", reason))
        });
        names.collect()
    }

    fn data_dir(&self) -> Result<Option<PathBuf>, ConfigError> {
        let said = self.data_dir.as_deref();
        said.map(|path| check_home("data_dir", path)).transpose()?;
        Ok(self.data_dir.clone())
    }

    fn store(&self) -> Result<Option<StoreUrl>, ConfigError> {
        match self.store.as_deref() {
            None | Some(MEMORY) => Ok(None),
            Some(url) => {
                let url = url.parse::<StoreUrl>();
                url.map(Some)
                    .map_err(|error| field("store", error.to_string()))
            }
        }
    }

    fn decision_log(&self) -> Result<Option<DecisionLog>, ConfigError> {
        let Some(target) = &self.decision_log else {
            return Ok(None);
        };
        if target.is_empty() {
            let reason = "write a file, or - for standard output";
            return Err(field("decision_log", reason));
        }
        check_home("decision_log", Path::new(target))?;
        let target = LogTarget::parse(target);
        let one_in = NonZeroU64::new(self.decision_log_one_in.unwrap_or(1)).ok_or_else(|| {
            field(
                "decision_log_one_in",
                "0 would write nothing: write 1 for all",
            )
        })?;
        Ok(Some(DecisionLog {
            target,
            one_in,
            hash_keys: self.decision_log_hash_keys.unwrap_or(false),
        }))
    }

    fn bounds(&self) -> Result<Bounds, ConfigError> {
        let default = Bounds::default();
        let bounds = Bounds {
            connections: at_least(
                "max_connections",
                self.max_connections,
                default.connections,
                1,
            )?,
            body: at_least("max_body_bytes", self.max_body_bytes, default.body, 64)?,
            argument: at_least(
                "max_argument_bytes",
                self.max_argument_bytes,
                default.argument,
                64,
            )?,
            frame: at_least(
                "max_frame_bytes",
                self.max_frame_bytes,
                default.frame,
                1_024,
            )?,
            unsent: at_least(
                "max_unsent_bytes",
                self.max_unsent_bytes,
                default.unsent,
                1_024,
            )?,
            buffers: at_least(
                "max_buffer_bytes",
                self.max_buffer_bytes,
                default.buffers,
                64 * 1_024,
            )?,
            header_timeout: self.timeout(
                "header_timeout",
                &self.header_timeout,
                default.header_timeout,
            )?,
            body_timeout: self.timeout("body_timeout", &self.body_timeout, default.body_timeout)?,
            idle_timeout: self.timeout("idle_timeout", &self.idle_timeout, default.idle_timeout)?,
            stall_timeout: self.timeout(
                "stall_timeout",
                &self.stall_timeout,
                default.stall_timeout,
            )?,
            drain_timeout: duration(
                "drain_timeout",
                self.drain_timeout.as_deref(),
                default.drain_timeout,
                Duration::ZERO,
            )?,
            shutdown_grace: duration(
                "shutdown_grace",
                self.shutdown_grace.as_deref(),
                default.shutdown_grace,
                Duration::ZERO,
            )?,
        };
        self.check_argument(&bounds)?;
        Ok(bounds)
    }

    /// Refuses arguments that fit into no frame.
    fn check_argument(&self, bounds: &Bounds) -> Result<(), ConfigError> {
        if bounds.argument > bounds.frame && self.max_argument_bytes.is_none() {
            let reason = format!(
                "a frame of {} bytes does not hold an argument of {} (max_argument_bytes): write at \
                 least {}, or a smaller max_argument_bytes as well",
                bounds.frame, bounds.argument, bounds.argument
            );
            return Err(field("max_frame_bytes", reason));
        }
        if bounds.argument > bounds.frame {
            let reason = format!(
                "an argument of {} bytes does not fit into a frame of {}: write at most max_frame_bytes",
                bounds.argument, bounds.frame
            );
            return Err(field("max_argument_bytes", reason));
        }
        Ok(())
    }

    fn timeout(
        &self,
        name: &'static str,
        said: &Option<String>,
        default: Duration,
    ) -> Result<Duration, ConfigError> {
        duration(name, said.as_deref(), default, MIN_TIMEOUT)
    }
}

/// Refuses a path that a shell would have read otherwise.
fn check_home(name: &'static str, path: &Path) -> Result<(), ConfigError> {
    if !path.starts_with("~") {
        return Ok(());
    }
    let path = path.display();
    let reason = format!("nobody makes a home directory of the `~` in `{path}`: write it out");
    Err(field(name, reason))
}

/// Shorter timeouts would end sound clients.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);

/// Shorter intervals would write without a pause.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn at_least(
    name: &'static str,
    said: Option<usize>,
    default: usize,
    least: usize,
) -> Result<usize, ConfigError> {
    match said {
        Some(value) if value < least => Err(field(
            name,
            format!("{value} is too small: write at least {least}"),
        )),
        Some(value) => Ok(value),
        None => Ok(default),
    }
}

fn duration(
    name: &'static str,
    said: Option<&str>,
    default: Duration,
    least: Duration,
) -> Result<Duration, ConfigError> {
    let Some(text) = said else {
        return Ok(default);
    };
    let value = parse_duration(text).map_err(|reason| field(name, reason))?;
    if value < least {
        let least = ExactDuration(least);
        return Err(field(
            name,
            format!("`{text}` is too short: write at least {least}"),
        ));
    }
    Ok(value)
}

fn address(
    name: &'static str,
    said: Option<&str>,
    default: Option<SocketAddr>,
    insecure: bool,
) -> Result<Option<SocketAddr>, ConfigError> {
    let Some(text) = said else {
        return Ok(default);
    };
    if text == OFF {
        return Ok(None);
    }
    let wrong = || {
        let reason = format!("`{text}` is no address: write one such as 127.0.0.1:8080, or off");
        field(name, reason)
    };
    let address = match text.parse::<SocketAddr>() {
        Ok(address) => address,
        // Names: `localhost:8080`.
        Err(_) => text
            .to_socket_addrs()
            .map_err(|_| wrong())?
            .next()
            .ok_or_else(wrong)?,
    };
    if !address.ip().to_canonical().is_loopback() && !insecure {
        let reason = format!(
            "`{text}` can be reached from other machines, and there are no TLS and no credentials yet: \
             write a loopback address such as 127.0.0.1:{}, or say --insecure (insecure = true) if the \
             network keeps strangers out",
            address.port()
        );
        return Err(field(name, reason));
    }
    Ok(Some(address))
}

impl Config {
    /// The same with nothing left unsaid, to be shown or kept: it resolves to this again.
    #[must_use]
    pub fn to_raw(&self) -> RawConfig {
        let text = |duration: Duration| Some(ExactDuration(duration).to_string());
        let address = |address: Option<SocketAddr>| {
            Some(address.map_or_else(|| OFF.to_owned(), |address| address.to_string()))
        };
        let log = self.decision_log.as_ref();
        RawConfig {
            rules: Some(self.rules.iter().map(RuleSource::to_path).collect()),
            allow_empty_rules: Some(self.allow_empty_rules),
            http: address(self.http),
            resp: address(self.resp),
            insecure: Some(self.insecure),
            allow_host: Some(self.allowed_hosts.clone()),
            shadow: Some(self.shadow),
            store: Some(match &self.store {
                Some(store) => store.to_string(),
                None => MEMORY.to_owned(),
            }),
            store_timeout: text(self.store_timeout),
            max_keys: Some(self.max_keys),
            data_dir: self.data_dir.clone(),
            snapshot_interval: text(self.snapshot_interval),
            decision_log: log.map(|log| log.target.to_string()),
            decision_log_one_in: log.map(|log| log.one_in.get()),
            decision_log_hash_keys: log.map(|log| log.hash_keys),
            max_connections: Some(self.bounds.connections),
            max_body_bytes: Some(self.bounds.body),
            max_argument_bytes: Some(self.bounds.argument),
            max_frame_bytes: Some(self.bounds.frame),
            max_unsent_bytes: Some(self.bounds.unsent),
            max_buffer_bytes: Some(self.bounds.buffers),
            header_timeout: text(self.bounds.header_timeout),
            body_timeout: text(self.bounds.body_timeout),
            idle_timeout: text(self.bounds.idle_timeout),
            stall_timeout: text(self.bounds.stall_timeout),
            drain_timeout: text(self.bounds.drain_timeout),
            shutdown_grace: text(self.bounds.shutdown_grace),
            retry_jitter: text(self.retry_jitter),
            x_rate_limit_headers: Some(self.x_rate_limit_headers),
            log: None,
            log_format: None,
            authorize: Some(self.said.clone()),
        }
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
            allow_host = ['quell.internal']
            decision_log = '-'
            decision_log_one_in = 10
            stall_timeout = '1.5s'
            [authorize]
            gateway = 'forwarded'
            entries = [{ entry = 'tenant', headers = ['X-Tenant'] }]
        ";
        let config = RawConfig::from_toml("quell.toml", text).unwrap().resolve();
        let config = config.unwrap();
        assert_eq!(config.authorize.entries.len(), 5);
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
                "http: `nowhere` is no address: write one such as 127.0.0.1:8080",
            ),
            ("resp = '0.0.0.0:1'", "say --insecure"),
            (
                "data_dir = '~/quell'",
                "data_dir: nobody makes a home directory",
            ),
            (
                "rules = ['~/a.yaml']",
                "rules: nobody makes a home directory",
            ),
            ("decision_log = '~/log'", "the `~` in `~/log`: write it out"),
            ("allow_host = ['[::1]']", "addresses are always answered"),
            ("allow_host = ['http://a']", "without scheme and port"),
            ("rules = ['redis://me@h']", "rules: the login is incomplete"),
            ("http = 'off'\nresp = 'off'", "both listeners are off"),
            ("max_keys = 0", "max_keys: 0 is too small: write at least 1"),
            ("idle_timeout = '5'", "idle_timeout: `5` has no unit"),
            ("idle_timeout = '1ms'", "write at least 10ms"),
            ("max_argument_bytes = 300000", "does not fit into a frame"),
            (
                "max_frame_bytes = 2000",
                "max_frame_bytes: a frame of 2000 bytes does not hold an argument of 65536",
            ),
            (
                "decision_log = '-'\ndecision_log_one_in = 0",
                "write 1 for all",
            ),
            ("[authorize]\ngateway = 'f5'", "write any, original"),
            (
                "[authorize]\nentries = [{entry = 'a', headers = ['x a']}]",
                "authorize.entries: `x a` is no name of a header",
            ),
            (
                "[authorize]\nentries = [{entry = 'a', headers = ['']}]",
                "a header has an empty name",
            ),
            (
                "[authorize]\nentries = [{entry = 'a', headers = ['x-a']}, {entry = 'a', headers = ['x-b']}]",
                "authorize.entries: `a` stands twice: write one, with all of its headers",
            ),
            (
                "[authorize]\nentries = [{entry = 'a', headers = ['x-a'], reading = 'ip'}]",
                "write plain, method, path, host or address",
            ),
            (
                "[authorize]\nprefix = 'x-quell-*'",
                "authorize.prefix: `x-quell-*` is no name of a header",
            ),
            (
                "[authorize]\nencoded_slashes = 'drop'",
                "authorize.encoded_slashes: `drop` is nothing to do with `%2F`: write refuse or keep",
            ),
        ] {
            let raw = RawConfig::from_toml("quell.toml", text);
            let error = raw.and_then(|raw| raw.resolve()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_said_first_counts() {
        let flags = RawConfig {
            shadow: Some(true),
            ..RawConfig::default()
        };
        let file = RawConfig::from_toml("quell.toml", "shadow = false\nmax_keys = 7").unwrap();
        let config = flags.or(file).resolve().unwrap();
        assert!(config.shadow);
        assert_eq!(config.max_keys, 7);
    }

    /// Whoever takes the path from another header still means a path.
    #[test]
    fn an_entry_from_another_header_is_read_as_before() {
        let text = "[authorize]\nentries = [{ entry = 'path', headers = ['X-Path'] }, \
                    { entry = 'host', headers = ['x-site'], reading = 'plain' }, \
                    { entry = 'tenant', headers = ['x-tenant'] }]";
        let raw = RawConfig::from_toml("quell.toml", text).unwrap();
        let map = raw.resolve().unwrap().authorize;
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
        assert_eq!(config.http.map(|address| address.port()), Some(8080));
    }
}
