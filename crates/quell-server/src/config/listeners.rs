//! Listeners: settings that have to fit together before anything listens.

use super::{Config, ConfigError, RawConfig, field};
use crate::address::Address;
use quell_host::config;

/// Refuses a configuration in which nobody could ask, TLS is not complete, or strangers could ask.
pub(super) fn check(raw: &RawConfig, config: &Config) -> Result<(), ConfigError> {
    if config.http.is_none() && config.resp.is_none() && config.envoy.is_none() {
        let reason = "http and resp are both off, so nobody could ask: write an address for one";
        return Err(field("http", reason));
    }
    check_tls(config)?;
    check_loopback("http", config.http.as_ref(), raw.http.as_deref(), config)?;
    check_loopback("resp", config.resp.as_ref(), raw.resp.as_deref(), config)?;
    check_loopback("admin", config.admin.as_ref(), raw.admin.as_deref(), config)?;
    check_loopback("envoy", config.envoy.as_ref(), raw.envoy.as_deref(), config)
}

/// Refuses a word that is no listener.
pub(super) fn check_plain(names: &[String]) -> Result<(), String> {
    const LISTENERS: [&str; 4] = ["http", "resp", "admin", "envoy"];
    match names.iter().find(|name| !LISTENERS.contains(&&***name)) {
        Some(name) => Err(format!(
            "`{name}` is no listener: write one of {}",
            LISTENERS.join(", ")
        )),
        None => Ok(()),
    }
}

fn check_tls(config: &Config) -> Result<(), ConfigError> {
    let (cert, key) = (config.tls_cert.is_some(), config.tls_key.is_some());
    config::check_tls(cert, key, config.tls_client_ca.is_some())?;
    let has_names = !config.envoy_client.is_empty();
    if has_names && config.tls_client_ca.is_none() {
        let reason = "no client could show a certificate: write tls_client_ca, too";
        return Err(field("envoy_client", reason));
    }
    match config.tls_client_ca.is_some() && config.credentials.is_none() && !has_names {
        true => Err(field(
            "tls_client_ca",
            "no certificate would mean anything: write credentials as well, with a [[certificates]] entry \
             for each client, or envoy_client",
        )),
        false => Ok(()),
    }
}

/// Refuses an address that other machines can reach, unless there are TLS and credentials or the operator
/// insists; `raw` is how it was written.
fn check_loopback(
    key: &'static str,
    address: Option<&Address>,
    raw: Option<&str>,
    config: &Config,
) -> Result<(), ConfigError> {
    let (Some(Address::Tcp(address)), Some(text)) = (address, raw) else {
        return Ok(());
    };
    let lacks = match (config.tls_cert.is_none(), config.credentials.is_none()) {
        _ if config.insecure => None,
        (false, false) => None,
        (true, true) => Some((
            "there are no TLS and no credentials",
            "tls_cert, tls_key and credentials",
        )),
        (true, false) => Some(("there is no TLS", "tls_cert and tls_key")),
        (false, true) => Some(("there are no credentials", "credentials")),
    };
    config::check_reachable(key, *address, text, lacks)
}
