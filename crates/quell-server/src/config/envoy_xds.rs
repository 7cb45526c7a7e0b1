//! Envoy xDS: the settings of a server that follows a control plane, and that they fit together.

use std::fmt;
use std::net::IpAddr;

use axum::http::Uri;
use quell_host::config::{Half, TextValue, check_pair};

use super::{Config, ConfigError, field};

/// URL of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsUrl(String);

impl XdsUrl {
    /// Returns true if the connection is by TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.starts_with("https:")
    }

    /// Returns true if only this machine is at the other end.
    fn is_loopback(&self) -> bool {
        let uri: Option<Uri> = self.0.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

impl TextValue for XdsUrl {
    /// Reads a URL with a scheme, a host and a port.
    fn from_text(text: &str) -> Result<Self, String> {
        let is_sound = |uri: &Uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.port().is_some()
                && uri.path_and_query().is_none_or(|path| path == "/")
                && !text.contains('@')
        };
        let uri: Option<Uri> = text.parse().ok();
        uri.filter(is_sound)
            .map(|_| Self(text.to_owned()))
            .ok_or_else(|| {
                format!(
                    "`{text}` is not the URL of a control plane: write http:// or https://, a host and a port, such \
                     as https://envoy-gateway:18001"
                )
            })
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

impl fmt::Display for XdsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Metadata of a node: a key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsMetadata {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

impl TextValue for XdsMetadata {
    fn from_text(text: &str) -> Result<Self, String> {
        let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
        let (key, value) =
            pair.ok_or_else(|| format!("`{text}` is no metadata: write KEY=VALUE"))?;
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }

    fn to_text(&self) -> String {
        format!("{}={}", self.key, self.value)
    }
}

/// Refuses settings of a control plane that have no use, and one that anybody could stand in for.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let of_tls = [
        ("envoy_xds_ca", config.envoy_xds_ca.is_some()),
        ("envoy_xds_cert", config.envoy_xds_cert.is_some()),
        ("envoy_xds_key", config.envoy_xds_key.is_some()),
        ("envoy_xds_san", config.envoy_xds_san.is_some()),
    ];
    let others = [
        ("envoy_xds_metadata", !config.envoy_xds_metadata.is_empty()),
        ("envoy_xds_headers", config.envoy_xds_headers.is_some()),
    ];
    let refuse_set = |settings: &[(&'static str, bool)], reason: &str| {
        let set = settings.iter().find(|(_, is_set)| *is_set);
        set.map_or(Ok(()), |(key, _)| Err(field(key, reason)))
    };
    let Some(url) = &config.envoy_xds else {
        let reason = "no control plane is followed: write envoy_xds, its URL, as well";
        return refuse_set(&of_tls, reason).and_then(|()| refuse_set(&others, reason));
    };
    if config.envoy_config.is_some() {
        let reason = "the limits are those of envoy_config: write one of the two";
        return Err(field("envoy_xds", reason));
    }
    if !url.is_tls() {
        refuse_set(&of_tls, "envoy_xds is not TLS: write an https URL")?;
        if !url.is_loopback() && !config.insecure {
            let reason = format!(
                "{url} is not TLS, so anybody on the way could change the limits: write an https URL, or say \
                 --insecure if the network keeps strangers out"
            );
            return Err(field("envoy_xds", reason));
        }
    }
    let half = |key, noun, is_set| Half { key, noun, is_set };
    check_pair(
        half(
            "envoy_xds_cert",
            "certificate",
            config.envoy_xds_cert.is_some(),
        ),
        half(
            "envoy_xds_key",
            "private key",
            config.envoy_xds_key.is_some(),
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::RawConfig;

    #[test]
    fn mistakes_say_what_to_write() {
        let here = "envoy_xds = 'http://127.0.0.1:1'\n";
        let tls = "envoy_xds = 'https://a:1'\n";
        for (text, expected) in [
            (
                "envoy_xds = 'a:18000'",
                "envoy_xds: `a:18000` is not the URL of a control plane: write",
            ),
            ("envoy_xds = 'http://a'", "a host and a port"),
            ("envoy_xds = 'http://u:p@a:1'", "is not the URL"),
            ("envoy_xds = 'http://a:1'", "say --insecure"),
            ("envoy_xds_san = 'a'", "write envoy_xds, its URL, as well"),
            ("envoy_xds_metadata = ['a=b']", "write envoy_xds, its URL"),
            (
                &*format!("{here}envoy_config = 'a'"),
                "envoy_xds: the limits are those of envoy_config",
            ),
            (
                &*format!("{here}envoy_xds_ca = 'a'"),
                "envoy_xds_ca: envoy_xds is not TLS",
            ),
            (
                &*format!("{here}envoy_xds_metadata = ['=b']"),
                "`=b` is no metadata: write KEY=VALUE",
            ),
            (
                &*format!("{tls}envoy_xds_cert = 'a'"),
                "write envoy_xds_key as well",
            ),
        ] {
            let raw = RawConfig::from_toml("quell.toml", text).unwrap();
            let error = raw.resolve().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let text = format!(
            "{tls}envoy_xds_metadata = ['a=b=c', 'd=']\nenvoy_xds_node = 'envoy-ratelimit'\n\
             envoy_xds_headers = 'env:HEADERS'\nenvoy_needs_config = false\nenvoy_xds_san = 'b'"
        );
        let config = RawConfig::from_toml("quell.toml", &text).unwrap().resolve();
        let config = config.unwrap();
        let shown = config.to_raw().to_toml().unwrap();
        let again = RawConfig::from_toml("shown", &shown).unwrap().resolve();
        assert_eq!(again, Ok(config), "{shown}");
    }
}
