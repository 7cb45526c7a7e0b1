//! Rule source: where rules are read from, a path, Redis, etcd or a directory of versions.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell::rule_store::{DirectoryRules, RuleStore};
use quell_redis::{RedisRules, StoreUrl, UrlError};

use crate::etcd_url::{EtcdUrl, EtcdUrlError};

/// The word for the coordinators of a fleet. A file of that name is `./fleet`.
const FLEET: &str = "fleet";

/// Source of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// A file, or a directory of files.
    Path(PathBuf),
    /// A Redis that somebody pushes them to.
    Store(StoreUrl),
    /// A directory of versions that somebody pushes them to.
    Directory(PathBuf),
    /// An etcd that somebody pushes them to.
    Etcd(EtcdUrl),
    /// The coordinators of the fleet that this server is a node of.
    Fleet,
}

impl RuleSource {
    /// Reads a source: text with `://` in it is the URL of a store.
    ///
    /// # Errors
    /// A text that says what to write instead.
    pub fn parse(said: &Path) -> Result<Self, String> {
        match said.to_str() {
            Some(FLEET) => Ok(Self::Fleet),
            Some(text) if text.contains("://") => Self::parse_store(text),
            _ => Ok(Self::Path(said.to_owned())),
        }
    }

    /// Reads the URL of a store.
    ///
    /// # Errors
    /// A text that says what to write instead.
    pub fn parse_store(text: &str) -> Result<Self, String> {
        if EtcdUrl::is_meant(text) {
            let url = text.parse().map(Self::Etcd);
            return url.map_err(|error: EtcdUrlError| error.to_string());
        }
        match (DirectoryRules::parse(text), text.parse()) {
            (Some(store), _) => store.map(|store| Self::Directory(store.directory().into())),
            (None, Ok(url)) => Ok(Self::Store(url)),
            (None, Err(UrlError::Scheme)) => Err(format!(
                "{}; or etcd://HOST:2379/NAME, or file://DIRECTORY",
                UrlError::Scheme
            )),
            (None, Err(error)) => Err(error.to_string()),
        }
    }

    /// Opens the store that it names; `None` for files and for the fleet. Nothing is read yet, and no client of
    /// etcd is here, whose build needs `protoc`.
    pub fn open<E>(
        &self,
        open_etcd: impl FnOnce(&EtcdUrl) -> Result<Arc<dyn RuleStore>, E>,
    ) -> Option<Result<Arc<dyn RuleStore>, E>> {
        match self {
            Self::Path(_) | Self::Fleet => None,
            Self::Store(url) => Some(Ok(Arc::new(RedisRules::new(url)))),
            Self::Directory(directory) => Some(Ok(Arc::new(DirectoryRules::new(directory)))),
            Self::Etcd(url) => Some(open_etcd(url)),
        }
    }

    /// The same as it is written; shows no password.
    #[must_use]
    pub fn to_path(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Store(url) => PathBuf::from(url.to_string()),
            Self::Etcd(url) => PathBuf::from(url.to_string()),
            Self::Directory(directory) => PathBuf::from(DirectoryRules::new(directory).url()),
            Self::Fleet => PathBuf::from(FLEET),
        }
    }
}

/// The sources in the values of a flag: each is split at commas, but not between the hosts of one URL,
/// which end with the first `/` or `?` after `://`.
#[must_use]
pub fn split_sources(values: &[OsString]) -> Vec<PathBuf> {
    let mut sources = Vec::new();
    for value in values {
        match value.to_str() {
            Some(text) => sources.extend(split_text(text).into_iter().map(PathBuf::from)),
            None => sources.push(PathBuf::from(value)),
        }
    }
    sources
}

fn split_text(text: &str) -> Vec<String> {
    let mut sources: Vec<String> = Vec::new();
    let mut are_hosts_open = false;
    for piece in text.split(',') {
        match sources.last_mut().filter(|_| are_hosts_open) {
            Some(url) => {
                url.push(',');
                url.push_str(piece);
                are_hosts_open = !piece.contains(['/', '?']);
            }
            None => {
                // redis+cluster://, redis+sentinel:// and etcd:// have several hosts.
                let url = piece.split_once("://");
                let hosts =
                    url.filter(|(scheme, _)| scheme.contains('+') || scheme.starts_with("etcd"));
                are_hosts_open = hosts.is_some_and(|(_, hosts)| !hosts.contains(['/', '?']));
                sources.push(piece.to_owned());
            }
        }
    }
    sources
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
        let etcd = RuleSource::parse(Path::new("etcd://h/shop")).unwrap();
        assert_eq!(etcd.to_path(), Path::new("etcd://h:2379/shop"));
        let error = RuleSource::parse(Path::new("http://h")).unwrap_err();
        assert!(error.ends_with("or file://DIRECTORY"), "{error}");
        let directory = RuleSource::parse(Path::new("file:///var/rules")).unwrap();
        assert_eq!(directory, RuleSource::Directory("/var/rules".into()));
        assert_eq!(directory.to_path(), Path::new("file:///var/rules"));
        assert!(RuleSource::parse(Path::new("file://")).is_err());
        let fleet = RuleSource::parse(Path::new("fleet")).unwrap();
        assert_eq!(
            (&fleet, fleet.to_path()),
            (&RuleSource::Fleet, "fleet".into())
        );
    }

    #[test]
    fn commas_part_sources_and_not_hosts() {
        for (text, sources) in [
            ("a.yaml,b/c.yaml", &["a.yaml", "b/c.yaml"][..]),
            ("redis://h:1/0,a.yaml", &["redis://h:1/0", "a.yaml"]),
            ("redis://h,a.yaml", &["redis://h", "a.yaml"]),
            (
                "redis+cluster://h:1,i:2/,a.yaml",
                &["redis+cluster://h:1,i:2/", "a.yaml"],
            ),
            (
                "etcd://h,i:2/shop,etcd://h/more,a.yaml",
                &["etcd://h,i:2/shop", "etcd://h/more", "a.yaml"],
            ),
            (
                "a.yaml,redis+cluster://h,i",
                &["a.yaml", "redis+cluster://h,i"],
            ),
            (
                "redis+sentinel://:p@h,i,j/0?master=m,b.yaml",
                &["redis+sentinel://:p@h,i,j/0?master=m", "b.yaml"],
            ),
        ] {
            assert_eq!(split_text(text), sources, "{text}");
        }
    }
}
