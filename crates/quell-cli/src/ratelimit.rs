//! `ratelimit`: the server under the name and with the variables of envoyproxy/ratelimit, so that the image of that
//! service can be exchanged for one of Quell.

use std::path::PathBuf;

use anyhow::Result;
use quell_rules::parse_duration;
use quell_server::config::RawConfig;

use crate::exit::{Exit, Usage};
use crate::{log, output, serve};

mod redis_url;
mod without_effect;

use redis_url::RedisVariables;
use without_effect::WITHOUT_EFFECT;

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
        raw.store_timeout = variables.duration("REDIS_TIMEOUT")?;
        variables.answers(&mut raw)?;
        variables.traces(&mut raw)?;
        variables.statistics(&mut raw)?;
        variables.log(&mut raw)?;
        for (names, why) in WITHOUT_EFFECT {
            for name in names {
                // Without the value, which may be a password.
                if variables.text(name).is_some() {
                    variables.notes.push(format!("{name} has no effect: {why}"));
                }
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

    /// A duration; `None` if there is none or it is 0, which Go takes without a unit.
    fn duration(&self, name: &str) -> Result<Option<String>, String> {
        let Some(text) = self.text(name).filter(|text| text != "0") else {
            return Ok(None);
        };
        let duration = parse_duration(&text).map_err(|reason| format!("{name}: {reason}"))?;
        Ok(Some(text).filter(|_| !duration.is_zero()))
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
        raw.envoy_max_connection_age = match self.text("GRPC_MAX_CONNECTION_AGE") {
            Some(_) => self.duration("GRPC_MAX_CONNECTION_AGE")?,
            None => Some("24h".to_owned()),
        };
        if !self.flag("GRPC_SERVER_USE_TLS", false)? {
            return Ok(());
        }
        if self.text("GRPC_UDS").is_some() {
            return Err(
                "GRPC_SERVER_USE_TLS: a Unix socket has no TLS here: leave it out, or write GRPC_HOST and GRPC_PORT \
                 in place of GRPC_UDS"
                    .to_owned(),
            );
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
                let mut directory =
                    PathBuf::from(self.or("RUNTIME_ROOT", "/srv/runtime_data/current"));
                // As in Go, those that begin with / are below the root, too.
                for (name, default) in [
                    ("RUNTIME_SUBDIRECTORY", ""),
                    ("RUNTIME_APPDIRECTORY", "config"),
                ] {
                    directory.push(self.or(name, default).trim_start_matches('/'));
                }
                raw.envoy_config = Some(directory);
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
        if let Some(kind) = self.text("REDIS_SOCKET_TYPE")
            && !kind.starts_with("tcp")
        {
            return Err(format!(
                "REDIS_SOCKET_TYPE: `{kind}` is not spoken to Redis: write tcp, and HOST:PORT as REDIS_URL"
            ));
        }
        let url = RedisVariables {
            url: &said,
            kind: &self.or("REDIS_TYPE", "SINGLE"),
            auth: self.text("REDIS_AUTH").as_deref(),
            is_tls: self.flag("REDIS_TLS", false)?,
        }
        .url()?;
        self.notes.extend(url.note.map(str::to_owned));
        Ok(Some(url.text))
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
        Ok(())
    }

    fn traces(&mut self, raw: &mut RawConfig) -> Result<(), String> {
        if !self.flag("TRACING_ENABLED", false)? {
            return Ok(());
        }
        let rate = self.or("TRACING_SAMPLING_RATE", "1");
        let Some(one_in) = one_in(&rate)? else {
            return Ok(());
        };
        match &*self.or("TRACING_EXPORTER_PROTOCOL", "http") {
            "grpc" => {}
            "http" => self.notes.push(
                "TRACING_EXPORTER_PROTOCOL is not grpc, by which alone spans are sent here: \
                 OTEL_EXPORTER_OTLP_ENDPOINT has to name the collector's port for it, which mostly is 4317"
                    .to_owned(),
            ),
            other => {
                return Err(format!(
                    "TRACING_EXPORTER_PROTOCOL: `{other}` is none: write grpc"
                ));
            }
        }
        raw.otlp_endpoint = Some(self.or("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317"));
        raw.trace_one_in = Some(one_in);
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
            for name in ["DEBUG_HOST", "DEBUG_PORT"] {
                if self.text(name).is_some() {
                    self.notes.push(format!(
                        "{name} has no effect: /rlconfig and /stats are on PROMETHEUS_ADDR"
                    ));
                }
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

/// The number N for which one in N is nearest to a share of calls; `None` if the share is 0.
fn one_in(rate: &str) -> Result<Option<usize>, String> {
    const MOST: f64 = 1e9;
    let share = rate.parse().ok().filter(|share: &f64| !share.is_nan());
    let share = share.ok_or_else(|| {
        format!("TRACING_SAMPLING_RATE: `{rate}` is no share: write a number from 0 to 1")
    })?;
    if share <= 0.0 {
        return Ok(None);
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is a whole number from 1 to MOST"
    )]
    let one_in = share.recip().round().clamp(1.0, MOST) as usize;
    Ok(Some(one_in))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

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
                "LOCAL_CACHE_SIZE_IN_BYTES has no effect: a refusal is remembered in the store, for refunds"
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
            (
                "GRPC_MAX_CONNECTION_AGE",
                "5",
                "GRPC_MAX_CONNECTION_AGE: `5` has no unit",
            ),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn mistakes_of_two_variables_say_what_to_write() {
        for (variables, expected) in [
            (
                [("GRPC_UDS", "/run/a.sock"), ("GRPC_SERVER_USE_TLS", "true")],
                "in place of GRPC_UDS",
            ),
            (
                [("REDIS_URL", "a:1"), ("REDIS_SOCKET_TYPE", "unix")],
                "REDIS_SOCKET_TYPE: `unix`",
            ),
            (
                [("TRACING_ENABLED", "1"), ("TRACING_SAMPLING_RATE", "NaN")],
                "from 0 to 1",
            ),
            (
                [
                    ("TRACING_ENABLED", "1"),
                    ("TRACING_EXPORTER_PROTOCOL", "zipkin"),
                ],
                "write grpc",
            ),
        ] {
            let error = read(&variables).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn no_value_is_told() {
        const SECRET: &str = "hunter2";
        let passwords = WITHOUT_EFFECT.iter().flat_map(|(names, _)| *names);
        let mut variables: Vec<_> = passwords.map(|name| (*name, SECRET)).collect();
        variables.push(("REDIS_URL", "m,redis://:hunter2@a:1"));
        variables.push(("REDIS_TYPE", "SENTINEL"));
        variables.push(("REDIS_AUTH", SECRET));
        let (_, notes) = read(&variables).unwrap();
        let auth = "REDIS_SENTINEL_AUTH has no effect: sentinels get no password";
        assert!(notes.iter().any(|note| note == auth), "{notes:?}");
        assert_eq!(notes.len(), variables.len() - 2, "{notes:?}");
        assert!(notes.iter().all(|note| !note.contains(SECRET)), "{notes:?}");
    }

    #[test]
    fn the_usual_store_needs_no_word() {
        let (_, notes) = read(&[
            ("BACKEND_TYPE", "redis"),
            ("REDIS_URL", "a:1"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_TIMEOUT", "100ms"),
        ])
        .unwrap();
        assert_eq!(notes, Vec::<String>::new());
    }

    #[test]
    fn directories_are_below_the_root() {
        for (subdirectory, application, expected) in [
            ("ratelimit", "", "/data/ratelimit/config"),
            ("/ratelimit", "", "/data/ratelimit/config"),
            ("/ratelimit/", "/limits", "/data/ratelimit/limits"),
            ("/", "a/b", "/data/a/b"),
        ] {
            let (raw, _) = read(&[
                ("RUNTIME_ROOT", "/data"),
                ("RUNTIME_SUBDIRECTORY", subdirectory),
                ("RUNTIME_APPDIRECTORY", application),
            ])
            .unwrap();
            assert_eq!(raw.envoy_config, Some(PathBuf::from(expected)));
        }
    }

    #[test]
    fn durations_of_0_are_none() {
        for (value, expected) in [
            ("", Some("24h")),
            ("0", None),
            ("0s", None),
            ("0h0m", None),
            ("90m", Some("90m")),
        ] {
            let (raw, _) = read(&[("GRPC_MAX_CONNECTION_AGE", value)]).unwrap();
            assert_eq!(raw.envoy_max_connection_age.as_deref(), expected);
            raw.resolve().unwrap();
        }
        for (value, expected) in [("", None), ("0", None), ("2s", Some("2s"))] {
            let (raw, _) = read(&[("REDIS_TIMEOUT", value)]).unwrap();
            assert_eq!(raw.store_timeout.as_deref(), expected);
        }
    }

    #[test]
    fn a_share_of_calls_is_traced() {
        for (rate, expected) in [
            ("", Some(1)),
            ("1", Some(1)),
            ("7", Some(1)),
            ("0.3", Some(3)),
            ("0.01", Some(100)),
            ("1e-30", Some(1_000_000_000)),
            ("0", None),
            ("-1", None),
        ] {
            let (raw, _) =
                read(&[("TRACING_ENABLED", "true"), ("TRACING_SAMPLING_RATE", rate)]).unwrap();
            assert_eq!(raw.trace_one_in, expected, "{rate}");
            assert_eq!(raw.otlp_endpoint.is_some(), expected.is_some(), "{rate}");
        }
    }

    #[test]
    fn traces_by_http_are_told() {
        for (protocol, expected) in [("", 1), ("http", 1), ("grpc", 0)] {
            let (_, notes) = read(&[
                ("TRACING_ENABLED", "true"),
                ("TRACING_EXPORTER_PROTOCOL", protocol),
            ])
            .unwrap();
            let told = notes.iter().filter(|note| note.contains("TRACING_"));
            assert_eq!(told.count(), expected, "{notes:?}");
        }
    }

    /// Every variable of src/settings/settings.go of that service, as of July 2026, and one that other versions have.
    const ALL: &str = "
        BACKEND_TYPE CACHE_KEY_PREFIX CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_CLIENT_TLS_CERT
        CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA
        CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_SERVER_TLS_CACERT
        CONFIG_GRPC_XDS_SERVER_TLS_SAN CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_TYPE
        DEBUG_HOST DEBUG_PORT DISABLE_STATS EXPIRATION_JITTER_MAX_SECONDS EXTRA_TAGS
        FORCE_START_WITHOUT_INITIAL_CONFIG GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN GRPC_HOST
        GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE GRPC_PORT GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY
        GRPC_SERVER_USE_TLS GRPC_UDS HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED HOST LIMIT_LIMIT_HEADER
        LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER LIMIT_RESPONSE_HEADERS_ENABLED LOCAL_CACHE_SIZE_IN_BYTES
        LOG_FORMAT LOG_LEVEL MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH
        MEMCACHE_TLS MEMCACHE_TLS_CACERT MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY
        MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION MERGE_DOMAIN_CONFIG NEAR_LIMIT_RATIO PORT PROMETHEUS_ADDR
        PROMETHEUS_MAPPER_YAML PROMETHEUS_PATH PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS QUOTA_MODE REDIS_AUTH
        REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_PERSECOND
        REDIS_PERSECOND_AUTH REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_PIPELINE_LIMIT
        REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_SIZE
        REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TIMEOUT REDIS_PERSECOND_TLS
        REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PIPELINE_LIMIT REDIS_PIPELINE_WINDOW
        REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_POOL_SIZE REDIS_SENTINEL_AUTH REDIS_SOCKET_TYPE
        REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME REDIS_STARTUP_MAX_INTERVAL REDIS_TIMEOUT
        REDIS_TLS REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY
        REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_TYPE REDIS_URL RESPONSE_DYNAMIC_METADATA RUNTIME_APPDIRECTORY
        RUNTIME_IGNOREDOTFILES RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_WATCH_ROOT SHADOW_MODE STATSD_HOST
        STATSD_PORT STATS_FLUSH_INTERVAL STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT TRACING_ENABLED
        TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE TRACING_SERVICE_INSTANCE_ID TRACING_SERVICE_NAME
        TRACING_SERVICE_NAMESPACE USE_CALENDAR_MONTH_RATE_LIMIT USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS
        USE_PROMETHEUS USE_STATSD XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_JITTER
        XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES
        ";

    #[test]
    fn every_variable_is_read_or_told() {
        let mut asked = BTreeSet::new();
        for variables in [
            &[][..],
            &[
                ("REDIS_URL", "a:1"),
                ("GRPC_SERVER_USE_TLS", "1"),
                ("GRPC_SERVER_TLS_CERT", "a"),
                ("GRPC_SERVER_TLS_KEY", "a"),
                ("GRPC_CLIENT_TLS_CACERT", "a"),
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "1"),
                ("LIMIT_RESPONSE_HEADERS_ENABLED", "1"),
                ("TRACING_ENABLED", "1"),
                ("USE_PROMETHEUS", "1"),
            ],
        ] {
            let names = RefCell::new(BTreeSet::new());
            Variables::read(|name| {
                names.borrow_mut().insert(name.to_owned());
                let mut all = variables.iter();
                let found = all.find(|(known, _)| *known == name);
                found.map(|(_, value): &(&str, &str)| (*value).to_owned())
            })
            .unwrap();
            asked.extend(names.into_inner());
        }
        // It is the collector's, for every program.
        asked.remove("OTEL_EXPORTER_OTLP_ENDPOINT");
        let all: BTreeSet<String> = ALL.split_whitespace().map(str::to_owned).collect();
        assert_eq!(asked, all);
    }
}
