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

    /// `--max-keys`, `QUELL_MAX_KEYS`, `quell.toml:3: max_keys`, or the bare name of what was not
    /// said.
    fn of(&self, field: &str) -> String {
        let id = field.replace('.', "_");
        let source = match self.matches.try_contains_id(&id) {
            Ok(true) => self.matches.value_source(&id),
            // Some fields can be said in the file only.
            _ => None,
        };
        match source {
            Some(ValueSource::CommandLine) => format!("--{}", id.replace('_', "-")),
            Some(ValueSource::EnvVariable) => format!("QUELL_{}", id.to_uppercase()),
            _ => self.in_file(field).unwrap_or_else(|| field.to_owned()),
        }
    }

    fn in_file(&self, field: &str) -> Option<String> {
        let file = self.file?;
        let line = RawConfig::line_of(&file.text, field)?;
        Some(format!("{}:{line}: {field}", file.name))
    }
}
