//! Value: how the types of settings are written, in a file and as a flag.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use axum::http::HeaderName;
use ipnet::IpNet;
use quell_fleet::agent::CoordinatorUrl;
use quell_redis::{StoreUrl, UrlError};
use quell_rules::{ExactDuration, parse_duration};

use super::{ConfigError, FlagShape, field};
use crate::address::Address;
use crate::fleet_member::FleetMember;
use crate::rule_source::{RuleSource, split_sources};
use crate::secret_source::SecretSource;
use crate::user_header::{proxy_network, user_header};

/// The type of a setting, and how it is written.
pub trait SettingValue: Sized {
    /// Form in a file.
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
    /// Shape of its flag.
    const SHAPE: FlagShape = FlagShape::Single;

    /// Reads the values of a flag, of which there is one unless it is a list.
    ///
    /// # Errors
    /// A text that says what is wrong with them, and what to write instead.
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

as_written!(bool, usize, String);

/// A value that is written as one text, alone or in a list.
pub trait TextValue: Sized {
    /// The word for none of it, if a setting has one.
    const NONE: Option<&'static str> = None;

    /// Reads the text.
    ///
    /// # Errors
    /// Names its fault, and what to write.
    fn from_text(text: &str) -> Result<Self, String>;

    /// The text.
    fn to_text(&self) -> String;
}

impl<T: TextValue> SettingValue for Option<T> {
    type Raw = String;

    fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
        if T::NONE == Some(raw) {
            return Ok(None);
        }
        let value = T::from_text(raw).map(Some);
        value.map_err(|reason| field(key, reason))
    }

    fn to_raw(&self) -> Option<String> {
        let none = || T::NONE.map(str::to_owned);
        self.as_ref().map(T::to_text).or_else(none)
    }
}

impl<T: TextValue> SettingValue for Vec<T> {
    type Raw = Vec<String>;

    fn read(key: &'static str, raw: &Vec<String>) -> Result<Self, ConfigError> {
        let value = |raw: &String| T::from_text(raw).map_err(|reason| field(key, reason));
        raw.iter().map(value).collect()
    }

    fn to_raw(&self) -> Option<Vec<String>> {
        Some(self.iter().map(T::to_text).collect())
    }
}

/// Types that have a text of their own: how it is read, and the word for none.
macro_rules! text_values {
    ($($type:ty: $read:expr $(, none $none:literal)?;)*) => {$(
        impl TextValue for $type {
            $( const NONE: Option<&'static str> = Some($none); )?

            fn from_text(text: &str) -> Result<Self, String> {
                $read(text)
            }

            fn to_text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

text_values! {
    Address: str::parse, none "off";
    CoordinatorUrl: str::parse;
    FleetMember: str::parse;
    HeaderName: user_header;
    IpNet: proxy_network;
    SecretSource: SecretSource::parse;
    SocketAddr: socket_address, none "off";
    StoreUrl: |text: &str| text.parse().map_err(|error: UrlError| error.to_string()), none "memory";
    String: |text: &str| Ok(text.to_owned());
}

/// An address of this machine, with a port.
fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not an address: write one such as 127.0.0.1:7600"))
}

impl TextValue for Duration {
    fn from_text(text: &str) -> Result<Self, String> {
        parse_duration(text)
    }

    fn to_text(&self) -> String {
        ExactDuration(*self).to_string()
    }
}

/// Types of which there is always one.
macro_rules! always_set {
    ($($type:ty),*) => {$(
        impl SettingValue for $type {
            type Raw = String;

            fn read(key: &'static str, raw: &String) -> Result<Self, ConfigError> {
                Self::from_text(raw).map_err(|reason| field(key, reason))
            }

            fn to_raw(&self) -> Option<String> {
                Some(self.to_text())
            }
        }
    )*};
}

always_set!(Duration, SocketAddr);

impl SettingValue for NonZeroU64 {
    type Raw = u64;

    fn read(key: &'static str, raw: &u64) -> Result<Self, ConfigError> {
        Self::new(*raw).ok_or_else(|| field(key, "0 would write nothing: write 1 for all"))
    }

    fn to_raw(&self) -> Option<u64> {
        Some(self.get())
    }
}

impl SettingValue for Option<u32> {
    type Raw = u32;

    fn read(_: &'static str, raw: &u32) -> Result<Self, ConfigError> {
        Ok(Some(*raw))
    }

    fn to_raw(&self) -> Option<u32> {
        *self
    }
}

impl SettingValue for Option<PathBuf> {
    type Raw = PathBuf;

    fn read(key: &'static str, raw: &PathBuf) -> Result<Self, ConfigError> {
        check_home(raw).map_err(|reason| field(key, reason))?;
        Ok(Some(raw.clone()))
    }

    fn to_raw(&self) -> Option<PathBuf> {
        self.clone()
    }
}

impl SettingValue for Vec<PathBuf> {
    type Raw = Self;

    fn read(key: &'static str, raw: &Self) -> Result<Self, ConfigError> {
        let checked = raw.iter().try_for_each(|path| check_home(path));
        checked.map_err(|reason| field(key, reason))?;
        Ok(raw.clone())
    }

    fn to_raw(&self) -> Option<Self> {
        Some(self.clone())
    }
}

impl SettingValue for Vec<RuleSource> {
    type Raw = Vec<PathBuf>;

    fn read(key: &'static str, raw: &Vec<PathBuf>) -> Result<Self, ConfigError> {
        let source = |raw: &PathBuf| {
            let source = check_home(raw).and_then(|()| RuleSource::parse(raw));
            source.map_err(|reason| field(key, reason))
        };
        raw.iter().map(source).collect()
    }

    fn to_raw(&self) -> Option<Vec<PathBuf>> {
        Some(self.iter().map(RuleSource::to_path).collect())
    }
}

/// Refuses a path with a `~` that a shell would have replaced.
///
/// # Errors
/// A text that says what to write instead.
pub fn check_home(path: &Path) -> Result<(), String> {
    match path.starts_with("~") {
        true => {
            let path = path.display();
            Err(format!(
                "`~` is not expanded in `{path}`: write the full path"
            ))
        }
        false => Ok(()),
    }
}

impl FlagValue for bool {
    const SHAPE: FlagShape = FlagShape::Switch;

    fn parse(values: &[OsString]) -> Result<Self, String> {
        let text = String::parse(values)?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err(format!("`{text}` is not a yes or no: write true or false")),
        }
    }
}

/// Whole numbers.
macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl FlagValue for $type {
            fn parse(values: &[OsString]) -> Result<Self, String> {
                whole(&String::parse(values)?)
            }
        }
    )*};
}

numbers!(u32, u64, usize);

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
/// Names the fix if it is none or too large.
pub fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| {
        if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
            format!("`{text}` is too large: write a smaller number")
        } else {
            format!("`{text}` is not a whole number: write digits only, such as 1000")
        }
    })
}

/// Checks that a number is not too small.
pub fn at_least(least: usize) -> impl Fn(&usize) -> Result<(), String> {
    move |value| match *value < least {
        true => Err(format!("{value} is too small: write at least {least}")),
        false => Ok(()),
    }
}

/// Checks that a duration is not too short.
pub fn no_shorter_than(least: Duration) -> impl Fn(&Duration) -> Result<(), String> {
    move |value| {
        let (shown, shortest) = (ExactDuration(*value), ExactDuration(least));
        match *value < least {
            true => Err(format!("`{shown}` is too short: write at least {shortest}")),
            false => Ok(()),
        }
    }
}

/// Checks names of hosts.
///
/// # Errors
/// A text that says what to write instead.
pub fn host_names(names: &[String]) -> Result<(), String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(is_of_name);
    match names.iter().find(|name| *name != "*" && !is_name(name)) {
        Some(name) => Err(format!(
            "`{name}` is not the name of a host: write one without scheme and port, such as quell.internal, \
            or * for any; addresses are always answered"
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
