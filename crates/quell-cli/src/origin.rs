//! Origin: where a setting was said, for who has to change it there.

use std::marker::PhantomData;

use clap::ArgMatches;
use clap::parser::ValueSource;
use quell_host::config::{ConfigError, RawSettings, line_of};

use crate::exit::Usage;

/// A configuration file as it was read.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Places in which settings can be given.
#[derive(Debug)]
pub(crate) struct Origins<'a, R> {
    matches: &'a ArgMatches,
    file: Option<&'a File>,
    settings: PhantomData<R>,
}

impl<'a, R: RawSettings> Origins<'a, R> {
    pub(crate) const fn new(matches: &'a ArgMatches, file: Option<&'a File>) -> Self {
        Self {
            matches,
            file,
            settings: PhantomData,
        }
    }

    /// Says what is wrong with a setting, and where it was said.
    pub(crate) fn wrong(&self, field: &str, reason: &str) -> Usage {
        Usage(format!("{}: {reason}", self.of(field)))
    }

    /// As [`Self::wrong`].
    pub(crate) fn usage(&self, error: &ConfigError) -> Usage {
        match error {
            ConfigError::Field { field, reason } => self.wrong(field, reason),
            other => Usage(other.to_string()),
        }
    }

    /// `--max-keys`, `QUELL_MAX_KEYS`, `quell.toml:3: max_keys`, or the bare key of what was not
    /// set.
    fn of(&self, key: &str) -> String {
        let mut settings = R::settings().into_iter();
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
        let line = line_of(&file.text, field)?;
        Some(format!("{}:{line}: {field}", file.name))
    }
}
