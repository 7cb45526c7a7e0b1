//! Connect: the connection to a control plane, its TLS and its header fields.

use std::error::Error;
use std::iter::successors;
use std::path::Path;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use quell_fleet::agent::Token;
use quell_host::task;
use tokio::time::timeout;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::config::Config;
use crate::error::ServeError;

/// The longest time in which a connection has to stand.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a connection is pinged. Servers in Go, such as Envoy Gateway, close one that is pinged more often
/// than every five minutes.
const PING: Duration = Duration::from_secs(310);

/// Time that the other end has to answer.
const PONG: Duration = Duration::from_secs(20);

/// Silence after which the system probes whether the other machine is there, and the interval of its probes, which no
/// server counts.
const PROBE: Duration = Duration::from_secs(20);

/// Refuses settings that name files or header fields that cannot be read. Reads them.
pub(crate) fn check(config: &Config) -> Result<(), ServeError> {
    let Some(url) = &config.envoy_xds else {
        return Ok(());
    };
    let read = prepare(config).map(drop);
    read.map_err(|reason| ServeError::ControlPlane {
        url: url.to_string(),
        reason,
    })
}

/// Connects. Returns the header fields that go with a call as well.
pub(super) async fn connect(config: &Config) -> Result<(Channel, HeaderMap), String> {
    let own = config.clone();
    let prepared = task::run_blocking(move || prepare(&own)).await;
    let (endpoint, headers) = prepared.ok_or("this server stops")??;
    let channel = timeout(CONNECT_TIMEOUT, endpoint.connect()).await;
    let channel = channel.map_err(|_| "it does not answer".to_owned())?;
    Ok((channel.map_err(|error| causes(&error))?, headers))
}

/// Reads the files anew for each connection.
fn prepare(config: &Config) -> Result<(Endpoint, HeaderMap), String> {
    let url = config.envoy_xds.as_ref().ok_or("there is no URL")?;
    let endpoint = Endpoint::from_shared(url.to_string()).map_err(|error| causes(&error))?;
    let mut endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Some(PROBE))
        .tcp_keepalive_interval(Some(PROBE))
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PONG);
    if url.is_tls() {
        let mut tls = match &config.envoy_xds_ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let (Some(certificate), Some(key)) = (&config.envoy_xds_cert, &config.envoy_xds_key) {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        if let Some(name) = &config.envoy_xds_san {
            tls = tls.domain_name(name);
        }
        endpoint = endpoint.tls_config(tls).map_err(|error| causes(&error))?;
    }
    let headers = match &config.envoy_xds_headers {
        None => HeaderMap::new(),
        Some(source) => match source.token()? {
            Token::Text(text) => parse_headers(&text)?,
            Token::File(path) => parse_headers(&String::from_utf8_lossy(&read(&path)?))?,
        },
    };
    Ok((endpoint, headers))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Header fields as `NAME:VALUE`, on lines or with commas.
fn parse_headers(text: &str) -> Result<HeaderMap, String> {
    let parts = text.split(['\n', ',']).map(str::trim);
    let field = |part: &str| {
        let (name, value) = part.split_once(':')?;
        let name: HeaderName = name.trim().parse().ok()?;
        let mut value: HeaderValue = value.trim().parse().ok()?;
        value.set_sensitive(true);
        Some((name, value))
    };
    let mut headers = HeaderMap::new();
    for (place, part) in parts.filter(|part| !part.is_empty()).enumerate() {
        // A field may be a secret, so the text does not show it.
        let (name, value) = field(part).ok_or_else(|| {
            let place = place + 1;
            format!("envoy_xds_headers: number {place} is no header field: write NAME:VALUE")
        })?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// An error with its causes.
fn causes(error: &dyn Error) -> String {
    let causes = successors(Some(error), |error: &&dyn Error| (*error).source());
    let mut texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_stand_on_lines_or_with_commas() {
        for text in ["a:1,B: 2 3", "a: 1\n\nb:2 3\n"] {
            let headers = parse_headers(text).unwrap();
            let values: Vec<_> = headers
                .iter()
                .map(|(name, value)| (name.as_str(), value))
                .collect();
            let (one, two) = (
                HeaderValue::from_static("1"),
                HeaderValue::from_static("2 3"),
            );
            assert_eq!(values, [("a", &one), ("b", &two)]);
        }
        for text in ["a:1,secret", "a:1,b c:1", "a:1,b:\u{7f}"] {
            let error = parse_headers(text).unwrap_err();
            let expected = "envoy_xds_headers: number 2 is no header field: write NAME:VALUE";
            assert_eq!(error, expected);
        }
    }
}
