//! Source: where rules are read from, a path or a store.

use std::path::{Path, PathBuf};

use quell_redis::{StoreUrl, UrlError};

/// Where rules are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleSource {
    /// A file, or a directory of files.
    Path(PathBuf),
    /// A store that somebody pushes them to.
    Store(StoreUrl),
}

impl RuleSource {
    /// Reads what was said: whatever has `://` in it is the URL of a store.
    pub(super) fn parse(said: &Path) -> Result<Self, UrlError> {
        match said.to_str() {
            Some(text) if text.contains("://") => text.parse().map(Self::Store),
            _ => Ok(Self::Path(said.to_owned())),
        }
    }

    /// The same as it is written; shows no password.
    pub(super) fn to_path(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Store(url) => PathBuf::from(url.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_store_and_all_else_a_path() {
        for text in ["shop.yaml", "rules.d/", "redis", "a:b.yaml"] {
            let source = RuleSource::parse(Path::new(text));
            assert_eq!(source, Ok(RuleSource::Path(text.into())));
        }
        for text in [
            "redis://h",
            "valkey://h/1",
            "redis+cluster://a,b",
            "rediss://:p@h",
        ] {
            let source = RuleSource::parse(Path::new(text)).unwrap();
            assert_eq!(source, RuleSource::Store(text.parse().unwrap()));
            assert!(!source.to_path().to_string_lossy().contains(":p@"));
        }
        assert!(RuleSource::parse(Path::new("http://h")).is_err());
    }
}
