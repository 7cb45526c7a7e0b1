//! Source: where credentials are read from, a file or an environment variable.

use std::fmt;
use std::path::{Path, PathBuf};

use super::credentials::{Credentials, CredentialsError};

/// What a variable's name begins with where a path could stand.
const VARIABLE: &str = "env:";

/// Where credentials are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CredentialsSource {
    /// A file, read again when it changes.
    File(PathBuf),
    /// An environment variable with the text of such a file.
    Variable(String),
}

impl CredentialsSource {
    /// Reads what was written: a path, or `env:NAME`.
    ///
    /// # Errors
    /// What to write, if it names nothing.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix(VARIABLE) {
            _ if text.is_empty() => Err("it is empty: write a file, or env:NAME".to_owned()),
            Some("") => Err("`env:` names no variable: write env:NAME".to_owned()),
            Some(name) => Ok(Self::Variable(name.to_owned())),
            None => Ok(Self::File(PathBuf::from(text))),
        }
    }

    /// The file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Variable(_) => None,
        }
    }

    /// Reads the credentials.
    pub fn read(&self) -> Result<Credentials, CredentialsError> {
        let text = match self {
            Self::File(path) => {
                std::fs::read_to_string(path).map_err(|source| CredentialsError::Unreadable {
                    path: path.clone().into(),
                    source,
                })?
            }
            Self::Variable(name) => {
                std::env::var(name).map_err(|_| CredentialsError::NoVariable(name.clone()))?
            }
        };
        Ok(Credentials::parse(&self.to_string(), &text)?)
    }
}

impl fmt::Display for CredentialsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Variable(name) => write!(f, "{VARIABLE}{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_or_a_variable() {
        let parse = CredentialsSource::parse;
        assert_eq!(
            parse("a.toml"),
            Ok(CredentialsSource::File("a.toml".into()))
        );
        let variable = parse("env:TOKENS").unwrap();
        assert_eq!(variable, CredentialsSource::Variable("TOKENS".to_owned()));
        assert_eq!(variable.to_string(), "env:TOKENS");
        assert!(parse("").is_err() && parse("env:").is_err());
        // It is set, and has no credentials; what it has is not shown.
        let set = CredentialsSource::Variable("PATH".to_owned());
        let told = set.read().unwrap_err().to_string();
        assert!(told.starts_with("env:PATH:1"), "{told}");
        let value = std::env::var("PATH").unwrap();
        assert!(!told.contains(&value), "{told}");
        let told = CredentialsSource::Variable("QUELL_NOT_SET".to_owned())
            .read()
            .unwrap_err();
        assert!(told.to_string().contains("QUELL_NOT_SET"), "{told}");
    }
}
