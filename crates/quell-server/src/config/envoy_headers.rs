//! Settings of answers to Envoy: header fields, and where and how statistics are counted.

use std::fmt;

use axum::http::HeaderName;
use quell_envoy::Fields;
use quell_host::config::{ConfigError, SettingValue, TextValue, field};

/// Names of the fields, in settings.
const NAMES: [(&str, Fields); 4] = [
    ("draft", Fields::Draft),
    ("ratelimit", Fields::RateLimit),
    ("x-ratelimit", Fields::XRateLimit),
    ("off", Fields::Off),
];

/// Header fields of answers to Envoy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvoyHeaders(Fields);

impl EnvoyHeaders {
    /// The fields.
    #[must_use]
    pub const fn fields(&self) -> &Fields {
        &self.0
    }
}

/// Three names of header fields, with commas between them.
fn three_names(raw: &str) -> Option<[String; 3]> {
    let names: Vec<_> = raw.split(',').map(|name| name.trim().to_owned()).collect();
    let are_names = names.iter().all(|name| name.parse::<HeaderName>().is_ok());
    names.try_into().ok().filter(|_| are_names)
}

impl SettingValue for EnvoyHeaders {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        if let Some(names) = three_names(raw) {
            return Ok(Self(Fields::Named(names)));
        }
        let known = NAMES.iter().find(|(name, _)| name == raw);
        known
            .map(|(_, fields)| Self(fields.clone()))
            .ok_or_else(|| {
                let names = NAMES.map(|(name, _)| name).join(", ");
                let own = "or three names of header fields, such as X-Limit,X-Remaining,X-Reset";
                field(
                    key,
                    format!("unknown value `{raw}`: write one of {names}, {own}"),
                )
            })
    }

    fn to_raw(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl fmt::Display for EnvoyHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Fields::Named(names) = &self.0 {
            return f.write_str(&names.join(","));
        }
        let known = NAMES.iter().find(|(_, fields)| *fields == self.0);
        f.write_str(known.map_or("", |(name, _)| name))
    }
}

/// Share of a limit from which on its statistics count hits as near to it, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearLimit(u32);

impl NearLimit {
    /// The share.
    #[must_use]
    pub const fn ratio(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// That of envoyproxy/ratelimit.
impl Default for NearLimit {
    fn default() -> Self {
        Self(0.8_f32.to_bits())
    }
}

impl SettingValue for NearLimit {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        let ratio = raw.parse::<f32>().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.map(|ratio| Self(ratio.to_bits())).ok_or_else(|| {
            let reason =
                format!("`{raw}` is no share of a limit: write a number from 0 to 1, such as 0.8");
            field(key, reason)
        })
    }

    fn to_raw(&self) -> Option<String> {
        Some(self.ratio().to_string())
    }
}

/// Host and port of a statsd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsdAddress(String);

impl StatsdAddress {
    /// The address, whose host may be a name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TextValue for StatsdAddress {
    const NONE: Option<&'static str> = Some("off");

    fn from_text(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once(':');
        let is_sound = parts.is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        match is_sound {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "`{text}` is no address of a statsd: write HOST:PORT, such as localhost:8125, or off"
            )),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}
