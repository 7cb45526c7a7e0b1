//! Origin: where a setting was said, for who has to change it there.

use clap::ArgMatches;
use clap::parser::ValueSource;
use quell_server::config::{ConfigError, RawConfig};

use crate::exit::Usage;

/// A configuration file as it was read.
#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: String,
}

/// Where settings can have been said.
#[derive(Debug)]
pub(super) struct Origins<'a> {
    pub(super) matches: &'a ArgMatches,
    pub(super) file: Option<&'a File>,
}

impl Origins<'_> {
    /// Says what is wrong with a setting, and where it was said.
    pub(super) fn wrong(&self, field: &str, reason: &str) -> Usage {
        Usage(format!("{}: {reason}", self.of(field)))
    }

    /// As [`Self::wrong`].
    pub(super) fn usage(&self, error: &ConfigError) -> Usage {
        match error {
            ConfigError::Field { field, reason } => self.wrong(field, reason),
            other => Usage(other.to_string()),
        }
    }

    /// `--max-keys`, `QUELL_MAX_KEYS`, `quell.toml:3: max_keys`, or the bare key of what was not
    /// set.
    fn of(&self, key: &str) -> String {
        let mut settings = RawConfig::settings().into_iter();
        let flag = settings.find(|setting| setting.key == key);
        let source = flag.map(|setting| (self.matches.value_source(key), setting));
        match source {
            Some((Some(ValueSource::CommandLine), setting)) => format!("--{}", setting.flag()),
            Some((Some(ValueSource::EnvVariable), setting)) => setting.variable(),
            _ => self.in_file(key).unwrap_or_else(|| key.to_owned()),
        }
    }

    fn in_file(&self, field: &str) -> Option<String> {
        let file = self.file?;
        let line = RawConfig::line_of(&file.text, field)?;
        Some(format!("{}:{line}: {field}", file.name))
    }
}
