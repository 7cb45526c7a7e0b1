//! Value: how the types of settings are written, in a file and as a flag.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use axum::http::HeaderName;
use ipnet::IpNet;
use quell_fleet::agent::CoordinatorUrl;
use quell_redis::StoreUrl;
use quell_rules::{ExactDuration, parse_duration};

use super::{
    ConfigError, FlagShape, FleetMember, LogTarget, OtlpEndpoint, RawEntrySource, RuleSource,
    TokenSource, field,
};
use crate::access::CredentialsSource;
use crate::address::Address;
use quell_host::rule_source::split_sources;
use quell_host::user_header::{proxy_network, user_header};

/// The type of a setting, and how it is written.
pub trait SettingValue: Sized {
    /// How a file has it.
    type Raw;

    /// Reads what was written of the setting `key`.
    ///
    /// # Errors
    /// [`ConfigError::Field`] if it is impossible.
    fn read(key: &'static str, raw: &Self::Raw) -> Result<Self, ConfigError>;

    /// The value as it is written; none for one that is off and has no word for that.
    fn to_raw(&self) -> Option<Self::Raw>;
}

/// A raw value that flags and environment variables can have.
pub trait FlagValue: Sized {
    /// How a flag takes it.
    const SHAPE: FlagShape = FlagShape::Single;

    /// Reads the values of a flag, of which there is one unless it is a list.
    ///
    /// # Errors
    /// What is wrong with them, and what to write.
    fn parse(values: &[OsString]) -> Result<Self, String>;
}

/// Types that are the same in a file.
macro_rules! as_written {
    ($($type:ty),*) => {$(
        impl SettingValue for $type {
            type Raw = Self;

            fn read(_: &'static str, raw: &Self) -> Result<Self, ConfigError> {
                Ok(raw.clone())
            }

            fn to_raw(&self) -> Option<Self> {
                Some(self.clone())
            }
        }
    )*};
}

as_written!(bool, usize, String, Vec<String>, Vec<RawEntrySource>);

impl SettingValue for NonZeroU64 {
    type Raw = u64;

    fn read(key: &'static str, raw: &u64) -> Result<Self, ConfigError> {
        Self::new(*raw).ok_or_else(|| field(key, "0 would write nothing: write 1 for all"))
    }

    fn to_raw(&self) -> Option<u64> {
        Some(self.get())
    }
}

impl SettingValue for Duration {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        parse_duration(raw).map_err(|reason| field(key, reason))
    }

    fn to_raw(&self) -> Option<String> {
        Some(ExactDuration(*self).to_string())
    }
}

/// The text for no listener, and for no collector.
const OFF: &str = "off";

impl SettingValue for Option<Address> {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        if raw == OFF {
            return Ok(None);
        }
        let address = raw.parse().map(Some);
        address.map_err(|reason: String| field(key, reason))
    }

    fn to_raw(&self) -> Option<String> {
        let address = self.as_ref().map(Address::to_string);
        Some(address.unwrap_or_else(|| OFF.to_owned()))
    }
}

/// Permissions of a file, for its owner, its group and others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixMode(u32);

impl UnixMode {
    /// The bits, as `chmod` takes them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Owner and group may read and write.
impl Default for UnixMode {
    fn default() -> Self {
        Self(0o660)
    }
}

impl SettingValue for UnixMode {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        let bits = u32::from_str_radix(raw, 8).ok();
        bits.filter(|bits| *bits <= 0o777).map(Self).ok_or_else(|| {
            let reason = format!("`{raw}` is no mode of a file: write octal digits such as 0660");
            field(key, reason)
        })
    }

    fn to_raw(&self) -> Option<String> {
        Some(format!("{:04o}", self.0))
    }
}

/// The text for no shared store.
const MEMORY: &str = "memory";

impl SettingValue for Option<StoreUrl> {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        if raw == MEMORY {
            return Ok(None);
        }
        let url = raw.parse().map(Some);
        url.map_err(|error: quell_redis::UrlError| field(key, error.to_string()))
    }

    fn to_raw(&self) -> Option<String> {
        let url = self.as_ref().map(StoreUrl::to_string);
        Some(url.unwrap_or_else(|| MEMORY.to_owned()))
    }
}

impl SettingValue for Option<OtlpEndpoint> {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        if raw == OFF {
            return Ok(None);
        }
        let endpoint = OtlpEndpoint::parse(raw).map(Some);
        endpoint.map_err(|reason| field(key, reason))
    }

    fn to_raw(&self) -> Option<String> {
        let endpoint = self.as_ref().map(OtlpEndpoint::to_string);
        Some(endpoint.unwrap_or_else(|| OFF.to_owned()))
    }
}

impl SettingValue for Option<PathBuf> {
    type Raw = PathBuf;

    fn read(key: &'static str, raw: &PathBuf) -> Result<Self, ConfigError> {
        check_home(key, raw)?;
        Ok(Some(raw.clone()))
    }

    fn to_raw(&self) -> Option<PathBuf> {
        self.clone()
    }
}

impl SettingValue for Option<CredentialsSource> {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        check_home(key, Path::new(raw))?;
        let source = CredentialsSource::parse(raw);
        source.map(Some).map_err(|reason| field(key, reason))
    }

    fn to_raw(&self) -> Option<String> {
        self.as_ref().map(CredentialsSource::to_string)
    }
}

impl SettingValue for Option<LogTarget> {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        if raw.is_empty() {
            return Err(field(key, "write a file, or - for standard output"));
        }
        check_home(key, Path::new(raw))?;
        Ok(Some(LogTarget::parse(raw)))
    }

    fn to_raw(&self) -> Option<String> {
        self.as_ref().map(LogTarget::to_string)
    }
}

impl SettingValue for Vec<CoordinatorUrl> {
    type Raw = Vec<String>;

    fn read(key: &'static str, raw: &Vec<String>) -> Result<Self, ConfigError> {
        let url = |raw: &String| raw.parse().map_err(|reason: String| field(key, reason));
        raw.iter().map(url).collect()
    }

    fn to_raw(&self) -> Option<Vec<String>> {
        Some(self.iter().map(CoordinatorUrl::to_string).collect())
    }
}

impl SettingValue for Option<HeaderName> {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        user_header(raw)
            .map(Some)
            .map_err(|reason| field(key, reason))
    }

    fn to_raw(&self) -> Option<String> {
        self.as_ref().map(HeaderName::to_string)
    }
}

impl SettingValue for Vec<IpNet> {
    type Raw = Vec<String>;

    fn read(key: &'static str, raw: &Vec<String>) -> Result<Self, ConfigError> {
        let network = |raw: &String| proxy_network(raw).map_err(|reason| field(key, reason));
        raw.iter().map(network).collect()
    }

    fn to_raw(&self) -> Option<Vec<String>> {
        Some(self.iter().map(IpNet::to_string).collect())
    }
}

impl SettingValue for Option<FleetMember> {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        let member = raw.parse().map(Some);
        member.map_err(|reason: String| field(key, reason))
    }

    fn to_raw(&self) -> Option<String> {
        self.as_ref().map(FleetMember::to_string)
    }
}

impl SettingValue for Option<TokenSource> {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        check_home(key, Path::new(raw))?;
        let source = TokenSource::parse(raw);
        source.map(Some).map_err(|reason| field(key, reason))
    }

    fn to_raw(&self) -> Option<String> {
        self.as_ref().map(TokenSource::to_string)
    }
}

impl SettingValue for Vec<RuleSource> {
    type Raw = Vec<PathBuf>;

    fn read(key: &'static str, raw: &Vec<PathBuf>) -> Result<Self, ConfigError> {
        let source = |raw: &PathBuf| {
            check_home(key, raw)?;
            RuleSource::parse(raw).map_err(|reason| field(key, reason))
        };
        raw.iter().map(source).collect()
    }

    fn to_raw(&self) -> Option<Vec<PathBuf>> {
        Some(self.iter().map(RuleSource::to_path).collect())
    }
}

/// Refuses a path with a `~` that a shell would have replaced.
fn check_home(key: &'static str, path: &Path) -> Result<(), ConfigError> {
    if !path.starts_with("~") {
        return Ok(());
    }
    let path = path.display();
    let reason = format!("nobody makes a home directory of the `~` in `{path}`: write it out");
    Err(field(key, reason))
}

impl FlagValue for bool {
    const SHAPE: FlagShape = FlagShape::Switch;

    fn parse(values: &[OsString]) -> Result<Self, String> {
        let text = String::parse(values)?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err(format!("`{text}` is no yes and no no: write true or false")),
        }
    }
}

impl FlagValue for usize {
    fn parse(values: &[OsString]) -> Result<Self, String> {
        whole(&String::parse(values)?)
    }
}

impl FlagValue for u64 {
    fn parse(values: &[OsString]) -> Result<Self, String> {
        whole(&String::parse(values)?)
    }
}

impl FlagValue for String {
    fn parse(values: &[OsString]) -> Result<Self, String> {
        let value = values.first().and_then(|value| value.to_str());
        value
            .map(str::to_owned)
            .ok_or_else(|| "it is not UTF-8: write text".to_owned())
    }
}

impl FlagValue for PathBuf {
    fn parse(values: &[OsString]) -> Result<Self, String> {
        let value = values.first().filter(|value| !value.is_empty());
        value
            .map(Self::from)
            .ok_or_else(|| "it is empty: write a path".to_owned())
    }
}

impl FlagValue for Vec<String> {
    const SHAPE: FlagShape = FlagShape::List;

    fn parse(values: &[OsString]) -> Result<Self, String> {
        let mut all = Self::new();
        for value in values.chunks(1) {
            all.extend(String::parse(value)?.split(',').map(str::to_owned));
        }
        Ok(all)
    }
}

impl FlagValue for Vec<PathBuf> {
    const SHAPE: FlagShape = FlagShape::List;

    fn parse(values: &[OsString]) -> Result<Self, String> {
        match values.iter().any(|value| value.is_empty()) {
            true => Err("it is empty: write a file, a directory or a URL".to_owned()),
            false => Ok(split_sources(values)),
        }
    }
}

/// Reads a whole number.
///
/// # Errors
/// What to write, if it is none or too large.
pub fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| {
        if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
            format!("`{text}` is too large: write a smaller number")
        } else {
            format!("`{text}` is no whole number: write digits only, such as 1000")
        }
    })
}

/// Checks that a number is not too small.
pub(super) fn at_least(least: usize) -> impl Fn(&usize) -> Result<(), String> {
    move |value| match *value < least {
        true => Err(format!("{value} is too small: write at least {least}")),
        false => Ok(()),
    }
}

/// Checks that a duration is not too short.
pub(super) fn no_shorter_than(least: Duration) -> impl Fn(&Duration) -> Result<(), String> {
    move |value| {
        let (shown, shortest) = (ExactDuration(*value), ExactDuration(least));
        match *value < least {
            true => Err(format!("`{shown}` is too short: write at least {shortest}")),
            false => Ok(()),
        }
    }
}

/// Checks names of hosts.
pub(super) fn host_names(names: &[String]) -> Result<(), String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(is_of_name);
    match names.iter().find(|name| *name != "*" && !is_name(name)) {
        Some(name) => Err(format!(
            "`{name}` is no name of a host: write one without scheme and port, such as \
             quell.internal, or * for any; addresses are always answered"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_and_no_have_several_words() {
        let parse = |text: &str| bool::parse(&[text.into()]);
        assert_eq!(parse("TRUE"), Ok(true));
        assert_eq!(parse("0"), Ok(false));
        assert!(parse("maybe").unwrap_err().contains("write true or false"));
    }

    #[test]
    fn lists_are_repeated_and_have_commas() {
        let parsed = Vec::<String>::parse(&["a,b".into(), "c".into()]);
        assert_eq!(parsed, Ok(["a", "b", "c"].map(str::to_owned).to_vec()));
    }
}
