//! OTLP: where traces are sent.

use std::fmt;

use axum::http::Uri;
use quell_host::config::TextValue;

/// The address of a collector of OpenTelemetry that takes OTLP over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(String);

impl TextValue for OtlpEndpoint {
    const NONE: Option<&'static str> = Some("off");

    /// Reads a URL with a scheme, a host and a port.
    fn from_text(text: &str) -> Result<Self, String> {
        let is_sound = |uri: &Uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.port().is_some()
                && uri.path_and_query().is_none_or(|path| path == "/")
        };
        let uri: Option<Uri> = text.parse().ok();
        match uri.filter(is_sound) {
            Some(_) => Ok(Self(text.to_owned())),
            None => Err(format!(
                "`{text}` is not the address of a collector: write http:// or https://, a host and a \
                 port, such as http://127.0.0.1:4317, or off"
            )),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

impl OtlpEndpoint {
    /// Returns true if the collector is reached over TLS.
    #[cfg(feature = "otel")]
    pub(crate) fn is_tls(&self) -> bool {
        self.0.starts_with("https:")
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
