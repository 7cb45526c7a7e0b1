//! Secret source: where credentials or a token are read from, a file or an environment variable.

use std::fmt;
use std::path::{Path, PathBuf};

use quell_fleet::agent::Token;

use crate::config::check_home;

/// Prefix of a variable's name where a path could stand.
const VARIABLE: &str = "env:";

/// Source of credentials or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file, read again when it changes.
    File(PathBuf),
    /// An environment variable with the text of such a file, or the token.
    Variable(String),
}

impl SecretSource {
    /// Reads what was written: a path, or `env:NAME`.
    ///
    /// # Errors
    /// Names the fix if it names nothing.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix(VARIABLE) {
            _ if text.is_empty() => Err("it is empty: write a file, or env:NAME".to_owned()),
            Some("") => Err("`env:` names no variable: write env:NAME".to_owned()),
            Some(name) => Ok(Self::Variable(name.to_owned())),
            None => check_home(Path::new(text)).map(|()| Self::File(PathBuf::from(text))),
        }
    }

    /// The file, if it is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Variable(_) => None,
        }
    }

    /// The text. Reads a file.
    ///
    /// # Errors
    /// Names what cannot be read.
    pub fn text(&self) -> Result<String, String> {
        match self {
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display())),
            Self::Variable(name) => std::env::var(name)
                .map_err(|_| format!("the environment variable {name} has no text: set it")),
        }
    }

    /// The token of a node, or where it is read.
    ///
    /// # Errors
    /// Names the fix if there is no such variable.
    pub fn token(&self) -> Result<Token, String> {
        match self {
            Self::File(path) => Ok(Token::File(path.clone())),
            Self::Variable(name) => match std::env::var(name) {
                Ok(token) => Ok(Token::Text(token.trim().to_owned())),
                Err(_) => Err(format!(
                    "the environment variable {name} has no token: set it"
                )),
            },
        }
    }
}

impl fmt::Display for SecretSource {
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
        let parse = SecretSource::parse;
        assert_eq!(parse("a.toml"), Ok(SecretSource::File("a.toml".into())));
        let variable = parse("env:TOKENS").unwrap();
        assert_eq!(variable, SecretSource::Variable("TOKENS".to_owned()));
        assert_eq!(variable.to_string(), "env:TOKENS");
        assert!(parse("").is_err() && parse("env:").is_err());
        let told = parse("~/a.toml").unwrap_err();
        assert_eq!(
            told,
            "`~` is not expanded in `~/a.toml`: write the full path"
        );
    }
}
