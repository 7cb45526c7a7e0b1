//! Header fields that Envoy adds to the answers of its clients.

use std::fmt;

use quell_envoy::Fields;
use quell_host::config::{ConfigError, SettingValue, field};

/// Names of the fields, in settings.
const NAMES: [(&str, Fields); 4] = [
    ("draft", Fields::Draft),
    ("ratelimit", Fields::RateLimit),
    ("x-ratelimit", Fields::XRateLimit),
    ("off", Fields::Off),
];

/// Header fields of answers to Envoy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnvoyHeaders(Fields);

impl EnvoyHeaders {
    /// The fields.
    #[must_use]
    pub const fn fields(self) -> Fields {
        self.0
    }
}

impl SettingValue for EnvoyHeaders {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        let known = NAMES.iter().find(|(name, _)| name == raw);
        known.map(|(_, fields)| Self(*fields)).ok_or_else(|| {
            let names = NAMES.map(|(name, _)| name).join(", ");
            field(key, format!("unknown value `{raw}`: write one of {names}"))
        })
    }

    fn to_raw(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl fmt::Display for EnvoyHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = NAMES.iter().find(|(_, fields)| *fields == self.0);
        f.write_str(known.map_or("", |(name, _)| name))
    }
}
