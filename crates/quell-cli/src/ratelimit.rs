//! `ratelimit`: the server under the name and with the variables of envoyproxy/ratelimit, so that the image of that
//! service can be exchanged for one of Quell.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use quell_server::config::RawConfig;

use crate::exit::{Exit, Usage};
use crate::{log, output, serve};

/// Name of the binary that asks for it.
pub(crate) const NAME: &str = "ratelimit";

const HELP: &str = "\
Quell in place of envoyproxy/ratelimit: it reads that service's variables and files, and has no arguments.

  RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, RUNTIME_APPDIRECTORY  directory of the limits (*.yaml)
  REDIS_URL, REDIS_TYPE, REDIS_AUTH, REDIS_TLS              store; without REDIS_URL limits are counted in memory
  GRPC_HOST, GRPC_PORT, GRPC_UDS, GRPC_SERVER_USE_TLS       listener for Envoy (8081)
  HOST, PORT, DEBUG_HOST, DEBUG_PORT                        /json and /healthcheck (8080), /rlconfig and /stats (6070)
  USE_PROMETHEUS, USE_STATSD                                statistics

The page docs/coming-from.md has all variables and the differences; quell --help has the other commands.";

/// Variables that have no effect here, and why.
const WITHOUT_EFFECT: [(&str, &str); 25] = [
    ("BACKEND_TYPE", "states are in Redis, or in memory"),
    (
        "CACHE_KEY_PREFIX",
        "keys of Quell have a prefix of their own",
    ),
    (
        "EXPIRATION_JITTER_MAX_SECONDS",
        "keys expire with their windows",
    ),
    (
        "GRPC_MAX_CONNECTION_AGE_GRACE",
        "a connection ends when its calls are answered",
    ),
    (
        "LOCAL_CACHE_SIZE_IN_BYTES",
        "a refusal is remembered in the store, for refunds",
    ),
    (
        "REDIS_CLUSTER_PIPELINE_PARALLELISM",
        "calls on different servers run at once",
    ),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        "/readyz tells whether the store answers",
    ),
    (
        "REDIS_PERSECOND",
        "limits of a second are in the same store",
    ),
    (
        "REDIS_PERSECOND_URL",
        "limits of a second are in the same store",
    ),
    (
        "REDIS_PIPELINE_LIMIT",
        "calls that come together are sent together",
    ),
    (
        "REDIS_PIPELINE_WINDOW",
        "calls that come together are sent together",
    ),
    ("REDIS_POOL_SIZE", "one connection carries many calls"),
    ("REDIS_SENTINEL_AUTH", "sentinels get no password"),
    (
        "REDIS_TLS_CACERT",
        "authorities are those of the system: SSL_CERT_FILE names a file with others",
    ),
    ("REDIS_TLS_CLIENT_CERT", "the store is told a password"),
    ("REDIS_TLS_CLIENT_KEY", "the store is told a password"),
    (
        "RUNTIME_IGNOREDOTFILES",
        "files whose names begin with a dot are never read",
    ),
    (
        "RUNTIME_WATCH_ROOT",
        "the directory is watched, and links to it",
    ),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "it is always so"),
    (
        "USE_CALENDAR_MONTH_RATE_LIMIT",
        "months are always those of the calendar",
    ),
    ("USE_DOG_STATSD", "statistics go to statsd or Prometheus"),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "a stream that ends is opened again after 1 s, and up to 60 s",
    ),
    (
        "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
        "a stream that ends is opened again after 1 s, and up to 60 s",
    ),
    (
        "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
        "a stream that ends is opened again after 1 s, and up to 60 s",
    ),
    (
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        "a message has at most 16 MiB",
    ),
];

/// Serves until told to stop.
///
/// # Errors
/// [`Usage`] if a variable is wrong, else why the server cannot start.
pub(crate) fn run() -> Result<Exit> {
    if let Some(argument) = std::env::args_os().nth(1) {
        return match argument.to_str() {
            Some("--help" | "-h") => output::line(HELP).map(|()| Exit::Fine),
            Some("--version" | "-V") => {
                output::line(format_args!("{NAME} (quell) {}", env!("CARGO_PKG_VERSION")))?;
                Ok(Exit::Fine)
            }
            _ => Err(Usage(format!(
                "{NAME} has no arguments: {NAME} --help lists its variables"
            ))
            .into()),
        };
    }
    let read = Variables::read(|name| std::env::var(name).ok());
    let (raw, notes) = read.map_err(Usage)?;
    let config = raw.resolve().map_err(|error| Usage(error.to_string()))?;
    let filter = log::filter(&config.log).map_err(Usage)?;
    let format = log::Format::parse(&config.log_format).map_err(Usage)?;
    log::start(filter, format)?;
    for note in notes {
        tracing::warn!("{note}");
    }
    serve::run(config, format)
}

/// Variables of the other service.
struct Variables<F> {
    get: F,
    notes: Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// The configuration that the variables make, and what is said of those that mean something else here.
    fn read(get: F) -> Result<(RawConfig, Vec<String>), String> {
        let notes = Vec::new();
        let mut variables = Self { get, notes };
        let mut raw = RawConfig {
            resp: Some("off".to_owned()),
            console: Some(false),
            insecure: Some(true),
            ..RawConfig::default()
        };
        variables.listeners(&mut raw)?;
        variables.limits(&mut raw)?;
        raw.store = variables.store()?;
        variables.answers(&mut raw)?;
        variables.statistics(&mut raw)?;
        variables.log(&mut raw)?;
        for (name, why) in WITHOUT_EFFECT {
            if let Some(value) = variables.text(name) {
                variables
                    .notes
                    .push(format!("{name}={value} has no effect: {why}"));
            }
        }
        Ok((raw, variables.notes))
    }

    /// The value of a variable that is set and not empty.
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|value| !value.is_empty())
    }

    fn or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    /// A truth value, as Go reads it.
    fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        match self.text(name).as_deref() {
            None => Ok(default),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(format!(
                "{name}: `{other}` is no truth value: write true or false"
            )),
        }
    }

    /// An address from a host and a port.
    fn address(&self, host: &str, port: &str, default: &str) -> Result<String, String> {
        let number = self.or(port, default);
        if number.parse::<u16>().is_err() {
            return Err(format!(
                "{port}: `{number}` is no port: write a number up to 65535"
            ));
        }
        let host = self.or(host, "0.0.0.0");
        Ok(match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]:{number}"),
            false => format!("{host}:{number}"),
        })
    }

    fn listeners(&mut self, raw: &mut RawConfig) -> Result<(), String> {
        raw.http = Some(self.address("HOST", "PORT", "8080")?);
        raw.envoy = Some(match self.text("GRPC_UDS") {
            Some(path) => format!("unix:{path}"),
            None => self.address("GRPC_HOST", "GRPC_PORT", "8081")?,
        });
        raw.admin = Some(self.address("DEBUG_HOST", "DEBUG_PORT", "6070")?);
        raw.envoy_max_connection_age = Some(self.or("GRPC_MAX_CONNECTION_AGE", "24h"));
        if !self.flag("GRPC_SERVER_USE_TLS", false)? {
            return Ok(());
        }
        let file = |name: &str| self.text(name).map(PathBuf::from);
        raw.tls_cert = file("GRPC_SERVER_TLS_CERT");
        raw.tls_key = file("GRPC_SERVER_TLS_KEY");
        if raw.tls_cert.is_none() || raw.tls_key.is_none() {
            return Err(
                "GRPC_SERVER_USE_TLS: there is no certificate: write GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY"
                    .to_owned(),
            );
        }
        raw.tls_client_ca = file("GRPC_CLIENT_TLS_CACERT");
        if raw.tls_client_ca.is_some() {
            raw.envoy_client = Some(vec![self.or("GRPC_CLIENT_TLS_SAN", "*")]);
        }
        // Probes and scrapers ask the others in the clear.
        raw.plain = Some(["http", "resp", "admin"].map(str::to_owned).to_vec());
        Ok(())
    }

    fn limits(&self, raw: &mut RawConfig) -> Result<(), String> {
        match &*self.or("CONFIG_TYPE", "FILE") {
            "FILE" => {
                let root = PathBuf::from(self.or("RUNTIME_ROOT", "/srv/runtime_data/current"));
                let directory = root.join(self.or("RUNTIME_SUBDIRECTORY", ""));
                raw.envoy_config = Some(directory.join(self.or("RUNTIME_APPDIRECTORY", "config")));
            }
            "GRPC_XDS_SOTW" => self.control_plane(raw)?,
            other => {
                return Err(format!(
                    "CONFIG_TYPE: `{other}` is no way to configure: write FILE or GRPC_XDS_SOTW"
                ));
            }
        }
        raw.envoy_merge_domains = Some(self.flag("MERGE_DOMAIN_CONFIG", false)?);
        let needs_limits = self.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false)?;
        raw.allow_empty_rules = Some(!needs_limits);
        raw.envoy_needs_config = Some(!self.flag("FORCE_START_WITHOUT_INITIAL_CONFIG", false)?);
        Ok(())
    }

    fn control_plane(&self, raw: &mut RawConfig) -> Result<(), String> {
        const HEADERS: &str = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
        let scheme = match self.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS", false)? {
            true => "https",
            false => "http",
        };
        let server = self.or("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000");
        raw.envoy_xds = Some(format!("{scheme}://{server}"));
        raw.envoy_xds_node = Some(self.or("CONFIG_GRPC_XDS_NODE_ID", "default"));
        let metadata = self
            .text("CONFIG_GRPC_XDS_NODE_METADATA")
            .unwrap_or_default();
        let pairs = metadata.split(',').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.replacen(':', "=", usize::from(!pair.contains('='))));
        raw.envoy_xds_metadata = Some(pairs.collect());
        raw.envoy_xds_headers = self.text(HEADERS).map(|_| format!("env:{HEADERS}"));
        if scheme == "https" {
            let file = |name: &str| self.text(name).map(PathBuf::from);
            raw.envoy_xds_ca = file("CONFIG_GRPC_XDS_SERVER_TLS_CACERT");
            raw.envoy_xds_cert = file("CONFIG_GRPC_XDS_CLIENT_TLS_CERT");
            raw.envoy_xds_key = file("CONFIG_GRPC_XDS_CLIENT_TLS_KEY");
            raw.envoy_xds_san = self.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN");
        }
        Ok(())
    }

    /// The URL of the store.
    fn store(&mut self) -> Result<Option<String>, String> {
        if self
            .text("BACKEND_TYPE")
            .is_some_and(|kind| kind != "redis")
        {
            return Err(
                "BACKEND_TYPE: Quell keeps states in Redis or Valkey, or in memory: write redis and REDIS_URL, or \
                 leave both out"
                    .to_owned(),
            );
        }
        let Some(said) = self.text("REDIS_URL") else {
            self.notes.push(
                "REDIS_URL is not set: limits are counted in memory, by each server alone"
                    .to_owned(),
            );
            return Ok(None);
        };
        if said.starts_with('/') {
            return Err(format!(
                "REDIS_URL: {said} is a Unix socket, which Quell does not speak to Redis: write HOST:PORT and \
                 REDIS_SOCKET_TYPE=tcp"
            ));
        }
        let is_tls = self.flag("REDIS_TLS", false)? || said.starts_with("rediss://");
        let scheme = if is_tls { "rediss" } else { "redis" };
        let auth = self
            .text("REDIS_AUTH")
            .map(|auth| match auth.split_once(':') {
                Some((user, password)) => format!("{}:{}@", encoded(user), encoded(password)),
                None => format!(":{}@", encoded(&auth)),
            });
        let auth = auth.unwrap_or_default();
        let bare = said.split_once("://").map_or(&*said, |(_, rest)| rest);
        let (own_auth, hosts) = bare
            .rsplit_once('@')
            .map_or(("", bare), |(login, hosts)| (login, hosts));
        let auth = match own_auth {
            "" => auth,
            login => format!("{login}@"),
        };
        Ok(Some(
            match &*self.or("REDIS_TYPE", "SINGLE").to_ascii_uppercase() {
                "SINGLE" => format!("{scheme}://{auth}{hosts}"),
                "CLUSTER" => format!("{scheme}+cluster://{auth}{hosts}"),
                "SENTINEL" => {
                    let Some((master, sentinels)) = hosts.split_once(',') else {
                        return Err(
                            "REDIS_URL: there are no sentinels: write MASTER,HOST:PORT,HOST:PORT"
                                .to_owned(),
                        );
                    };
                    format!("{scheme}+sentinel://{auth}{sentinels}?master={master}")
                }
                other => {
                    return Err(format!(
                        "REDIS_TYPE: `{other}` is none: write SINGLE, SENTINEL or CLUSTER"
                    ));
                }
            },
        ))
    }

    fn answers(&self, raw: &mut RawConfig) -> Result<(), String> {
        let names = [
            ("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
            ("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
            ("LIMIT_RESET_HEADER", "RateLimit-Reset"),
        ];
        raw.envoy_headers = Some(match self.flag("LIMIT_RESPONSE_HEADERS_ENABLED", false)? {
            true => names
                .map(|(name, default)| self.or(name, default))
                .join(","),
            false => "off".to_owned(),
        });
        raw.shadow = Some(self.flag("SHADOW_MODE", false)?);
        raw.envoy_quota = Some(self.flag("QUOTA_MODE", false)?);
        raw.envoy_metadata = Some(self.flag("RESPONSE_DYNAMIC_METADATA", false)?);
        if self.flag("TRACING_ENABLED", false)? {
            raw.otlp_endpoint =
                Some(self.or("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317"));
            raw.trace_one_in = Some(1);
        }
        Ok(())
    }

    fn statistics(&mut self, raw: &mut RawConfig) -> Result<(), String> {
        raw.envoy_near_limit = self.text("NEAR_LIMIT_RATIO");
        if self.flag("DISABLE_STATS", false)? {
            return Ok(());
        }
        if self.flag("USE_PROMETHEUS", false)? {
            let path = self.or("PROMETHEUS_PATH", "/metrics");
            if path != "/metrics" {
                return Err(format!(
                    "PROMETHEUS_PATH: {path} is not answered here: write /metrics"
                ));
            }
            let address = self.or("PROMETHEUS_ADDR", ":9090");
            raw.admin = Some(match address.strip_prefix(':') {
                Some(port) => format!("0.0.0.0:{port}"),
                None => address,
            });
            if self.text("DEBUG_PORT").is_some() {
                let note = "DEBUG_PORT has no effect: /rlconfig and /stats are on PROMETHEUS_ADDR";
                self.notes.push(note.to_owned());
            }
        } else if self.flag("USE_STATSD", true)? {
            let (host, port) = (
                self.or("STATSD_HOST", "localhost"),
                self.or("STATSD_PORT", "8125"),
            );
            raw.envoy_statsd = Some(format!("{host}:{port}"));
            raw.envoy_statsd_interval = self.text("STATS_FLUSH_INTERVAL");
        }
        Ok(())
    }

    fn log(&self, raw: &mut RawConfig) -> Result<(), String> {
        let level = self.or("LOG_LEVEL", "WARN");
        raw.log = Some(
            match &*level.to_ascii_lowercase() {
                "trace" => "trace",
                "debug" => "debug",
                "info" => "info",
                "warn" | "warning" => "warn",
                "error" | "fatal" | "panic" => "error",
                _ => {
                    return Err(format!(
                        "LOG_LEVEL: `{level}` is no level: write debug, info, warn or error"
                    ));
                }
            }
            .to_owned(),
        );
        raw.log_format = Some(
            match self.or("LOG_FORMAT", "text").eq_ignore_ascii_case("json") {
                true => "json".to_owned(),
                false => "text".to_owned(),
            },
        );
        Ok(())
    }
}

/// A part of a URL, in which everything that could have a meaning is written as `%41`.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                encoded.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<(RawConfig, Vec<String>), String> {
        Variables::read(|name| {
            let mut all = variables.iter();
            let found = all.find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_variables_it_listens_where_the_other_service_does() {
        let (raw, notes) = read(&[]).unwrap();
        let at = |address: Option<String>| address.unwrap_or_default();
        assert_eq!(at(raw.http.clone()), "0.0.0.0:8080");
        assert_eq!(at(raw.envoy.clone()), "0.0.0.0:8081");
        assert_eq!(at(raw.admin.clone()), "0.0.0.0:6070");
        assert_eq!(at(raw.envoy_statsd.clone()), "localhost:8125");
        let directory = raw.envoy_config.clone().unwrap();
        assert_eq!(directory, PathBuf::from("/srv/runtime_data/current/config"));
        assert_eq!(raw.envoy_headers.as_deref(), Some("off"));
        assert!(notes[0].starts_with("REDIS_URL is not set"), "{notes:?}");
        raw.resolve().unwrap();
    }

    #[test]
    fn the_variables_of_envoy_gateway_make_a_configuration() {
        let (raw, notes) = read(&[
            ("RUNTIME_ROOT", "/data"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", "redis.example:6379"),
            ("REDIS_AUTH", "p@ss:w/rd"),
            ("USE_STATSD", "false"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", ":19001"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
            ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
            ("GRPC_CLIENT_TLS_CACERT", "/certs/ca.crt"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "1"),
            ("LIMIT_RESET_HEADER", "X-Reset"),
            ("LOG_LEVEL", "info"),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "1000"),
        ])
        .unwrap();
        let config = raw.resolve().unwrap();
        assert_eq!(
            raw.store.as_deref(),
            Some("redis://p%40ss:w%2Frd@redis.example:6379")
        );
        assert_eq!(raw.admin.as_deref(), Some("0.0.0.0:19001"));
        let names = "RateLimit-Limit,RateLimit-Remaining,X-Reset";
        assert_eq!(config.envoy_headers.to_string(), names);
        assert_eq!(config.envoy_client, ["*"]);
        assert_eq!(config.plain, ["http", "resp", "admin"]);
        assert!(config.envoy_statsd.is_none() && !config.envoy_needs_config);
        assert_eq!(
            notes,
            [
                "LOCAL_CACHE_SIZE_IN_BYTES=1000 has no effect: a refusal is remembered in the store, for refunds"
            ]
        );
    }

    #[test]
    fn limits_may_come_from_a_control_plane() {
        let (raw, _) = read(&[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "zone:a,rack=7"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "30s"),
        ])
        .unwrap();
        assert_eq!(
            raw.envoy_xds.as_deref(),
            Some("https://envoy-gateway:18001")
        );
        assert_eq!(raw.envoy_xds_node.as_deref(), Some("envoy-ratelimit"));
        let pairs = raw.envoy_xds_metadata.clone().unwrap_or_default();
        assert_eq!(pairs, ["zone=a", "rack=7"]);
        assert!(raw.envoy_config.is_none());
        raw.resolve().unwrap();
    }

    #[test]
    fn stores_are_named_by_their_types() {
        for (variables, expected) in [
            (
                &[("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "CLUSTER")][..],
                "redis+cluster://a:1,b:2",
            ),
            (
                &[
                    ("REDIS_URL", "mymaster,a:1,b:2"),
                    ("REDIS_TYPE", "sentinel"),
                    ("REDIS_TLS", "true"),
                ],
                "rediss+sentinel://a:1,b:2?master=mymaster",
            ),
            (&[("REDIS_URL", "redis://:x@a:1/2")], "redis://:x@a:1/2"),
            (&[("REDIS_URL", "rediss://a")], "rediss://a"),
        ] {
            let (raw, _) = read(variables).unwrap();
            assert_eq!(raw.store.as_deref(), Some(expected));
            raw.resolve().unwrap();
        }
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (name, value, expected) in [
            ("PORT", "http", "PORT: `http` is no port"),
            (
                "SHADOW_MODE",
                "perhaps",
                "SHADOW_MODE: `perhaps` is no truth value",
            ),
            ("BACKEND_TYPE", "memcache", "write redis and REDIS_URL"),
            ("REDIS_URL", "/var/run/redis.sock", "is a Unix socket"),
            ("CONFIG_TYPE", "ETCD", "CONFIG_TYPE: `ETCD`"),
            ("LOG_LEVEL", "loud", "LOG_LEVEL: `loud`"),
            ("GRPC_SERVER_USE_TLS", "true", "write GRPC_SERVER_TLS_CERT"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
