//! Listeners: settings that have to fit together before anything listens.

use super::{Config, ConfigError, RawConfig, field};
use crate::address::Address;

/// Refuses a configuration in which nobody could ask, TLS is not complete, or strangers could ask.
pub(super) fn check(raw: &RawConfig, config: &Config) -> Result<(), ConfigError> {
    if config.http.is_none() && config.resp.is_none() {
        let reason = "http and resp are both off, so nobody could ask: write an address for one";
        return Err(field("http", reason));
    }
    check_tls(config)?;
    check_loopback("http", config.http.as_ref(), raw.http.as_deref(), config)?;
    check_loopback("resp", config.resp.as_ref(), raw.resp.as_deref(), config)?;
    check_loopback("admin", config.admin.as_ref(), raw.admin.as_deref(), config)
}

fn check_tls(config: &Config) -> Result<(), ConfigError> {
    match (&config.tls_cert, &config.tls_key, &config.tls_client_ca) {
        (Some(_), None, _) => Err(field(
            "tls_cert",
            "a certificate is of no use without its private key: write tls_key as well",
        )),
        (None, Some(_), _) => Err(field(
            "tls_key",
            "a private key is of no use without its certificate: write tls_cert as well",
        )),
        (None, None, Some(_)) => Err(field(
            "tls_client_ca",
            "clients show certificates over TLS only: write tls_cert and tls_key as well",
        )),
        (_, _, Some(_)) if config.credentials.is_none() => Err(field(
            "tls_client_ca",
            "no certificate would mean anything: write credentials as well, with a [[certificates]] entry \
             for each client",
        )),
        _ => Ok(()),
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
    if config.insecure || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let (lacks, write) = match (config.tls_cert.is_none(), config.credentials.is_none()) {
        (false, false) => return Ok(()),
        (true, true) => (
            "there are no TLS and no credentials",
            "tls_cert, tls_key and credentials",
        ),
        (true, false) => ("there is no TLS", "tls_cert and tls_key"),
        (false, true) => ("there are no credentials", "credentials"),
    };
    let reason = format!(
        "`{text}` can be reached from other machines, and {lacks}: write {write}, or a loopback address \
         such as 127.0.0.1:{}, or say --insecure (insecure = true) if the network keeps strangers out",
        address.port()
    );
    Err(field(key, reason))
}
