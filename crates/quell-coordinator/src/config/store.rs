//! Store: where a coordinator keeps the fleet.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;
use std::sync::Arc;

use quell::override_store::OverrideStore;
use quell_host::config::{ConfigError, field};
use quell_host::lazy_overrides::LazyOverrides;
use tokio::sync::watch;

use crate::error::ServeError;
#[cfg(feature = "etcd")]
use crate::etcd_overrides::EtcdOverrides;
use crate::leader::{DesiredLimits, Leader, StartError};
use crate::session::{Session, SessionOptions};
use crate::store::{EmbeddedStore, EtcdOptions, EtcdTls};

/// Storage of the fleet.
#[derive(Clone, Debug)]
pub enum FleetStore {
    /// In this file, for one coordinator.
    Embedded(PathBuf),
    /// In etcd, for several.
    Etcd {
        /// Its URLs.
        urls: Vec<String>,
        /// Access to it.
        access: EtcdAccess,
    },
}

impl FleetStore {
    /// Default path of the list of changes: beside the file.
    #[must_use]
    pub fn changes(&self) -> Option<PathBuf> {
        let Self::Embedded(path) = self else {
            return None;
        };
        let mut path = path.clone().into_os_string();
        path.push(".changes");
        Some(path.into())
    }

    /// The stored overrides of the fleet with this name, at most so many. Reads files.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub(crate) fn overrides(
        &self,
        fleet: &str,
        max: u64,
    ) -> Result<Option<Arc<dyn OverrideStore>>, ServeError> {
        match self {
            Self::Embedded(path) => {
                let mut directory = path.clone().into_os_string();
                directory.push(".overrides");
                let store = LazyOverrides::new(Some(directory.into()), max);
                Ok(Some(Arc::new(store.map_err(ServeError::Overrides)?)))
            }
            #[cfg(not(feature = "etcd"))]
            Self::Etcd { .. } => {
                let _ = (fleet, max);
                Ok(None)
            }
            #[cfg(feature = "etcd")]
            Self::Etcd { urls, access } => {
                let access = access.options(urls.iter().any(|url| is_tls(url)))?;
                let prefix = format!("/quell-overrides/{fleet}/");
                let store = EtcdOverrides::new(urls.clone(), access, &prefix);
                let store = store.map_err(StartError::from)?;
                Ok(Some(Arc::new(store.with_max(max))))
            }
        }
    }

    /// Refuses URLs that cannot be used.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Self::Etcd { urls, access } = self else {
            return Ok(());
        };
        let is_url = |url: &&String| url.starts_with("http://") || is_tls(url);
        if let Some(url) = urls.iter().find(|url| !is_url(url)) {
            let reason = format!(
                "`{url}` is not a URL of etcd: write http://HOST:2379 or https://HOST:2379"
            );
            return Err(field("etcd", reason));
        }
        let says_tls = access.authority.is_some() || access.identity.is_some();
        if says_tls && let Some(url) = urls.iter().find(|url| !is_tls(url)) {
            let reason = format!(
                "{url} is not TLS: write an https URL, or leave --etcd-ca and --etcd-cert out"
            );
            return Err(field("etcd", reason));
        }
        Ok(())
    }

    /// Starts a coordinator over this store.
    ///
    /// # Errors
    /// Why it cannot start; that etcd does not answer is no error.
    pub(crate) fn start(
        &self,
        options: SessionOptions,
        wanted: watch::Receiver<DesiredLimits>,
    ) -> Result<Leader, ServeError> {
        match self {
            Self::Embedded(path) => {
                let store = EmbeddedStore::open(path)?;
                let session = Session::start(store, options).map_err(StartError::from)?;
                Ok(Leader::start(session, wanted))
            }
            Self::Etcd { urls, access } => {
                let access = access.options(urls.iter().any(|url| is_tls(url)))?;
                Ok(Leader::start_on_etcd(
                    urls.clone(),
                    access,
                    options,
                    wanted,
                )?)
            }
        }
    }
}

fn is_tls(url: &str) -> bool {
    url.starts_with("https://")
}

impl fmt::Display for FleetStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(path) => path.display().fmt(f),
            Self::Etcd { urls, .. } => write!(f, "etcd at {}", urls.join(", ")),
        }
    }
}

/// Etcd's credentials.
#[derive(Clone, Debug, Default)]
pub struct EtcdAccess {
    /// A PEM file with the authority that signed its certificates; the system's without one.
    pub authority: Option<PathBuf>,
    /// PEM files with the certificate to show, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A user, and a file with the password.
    pub user: Option<(String, PathBuf)>,
}

/// A file with what etcd asks for cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdAccessError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A password is no text.
    #[error("{} is not UTF-8 text", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The UTF-8 error.
        source: FromUtf8Error,
    },
}

impl EtcdAccess {
    /// Reads the variables of `quell fleet coordinator`, for programs without its flags. `variable` gives the value
    /// of one.
    ///
    /// # Errors
    /// Returns the mistake, with the setting to write, if one of a pair is missing.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let file = |name| variable(name).map(PathBuf::from);
        let identity = (file("QUELL_ETCD_CERT"), file("QUELL_ETCD_KEY"));
        let user = variable("QUELL_ETCD_USER").and_then(|user| user.into_string().ok());
        let user = (user, file("QUELL_ETCD_PASSWORD_FILE"));
        Ok(Self {
            authority: file("QUELL_ETCD_CA"),
            identity: both(identity, "QUELL_ETCD_CERT and QUELL_ETCD_KEY")?,
            user: both(user, "QUELL_ETCD_USER and QUELL_ETCD_PASSWORD_FILE")?,
        })
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`EtcdAccessError`].
    pub fn options(&self, is_tls: bool) -> Result<EtcdOptions, EtcdAccessError> {
        let user = self.user.as_ref().map(|(name, path)| {
            let password = String::from_utf8(read(path)?);
            let password = password.map_err(|source| EtcdAccessError::NotText {
                path: path.clone(),
                source,
            })?;
            Ok::<_, EtcdAccessError>((name.clone(), password.trim().to_owned()))
        });
        let identity = self.identity.as_ref();
        let identity =
            identity.map(|(cert, key)| Ok::<_, EtcdAccessError>((read(cert)?, read(key)?)));
        let tls = EtcdTls {
            authority: self.authority.as_deref().map(read).transpose()?,
            identity: identity.transpose()?,
        };
        Ok(EtcdOptions {
            user: user.transpose()?,
            tls: is_tls.then_some(tls),
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, EtcdAccessError> {
    std::fs::read(path).map_err(|source| EtcdAccessError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

/// Two values that belong together, if they are set.
fn both<A, B>(pair: (Option<A>, Option<B>), names: &str) -> Result<Option<(A, B)>, String> {
    match pair {
        (Some(one), Some(other)) => Ok(Some((one, other))),
        (None, None) => Ok(None),
        _ => Err(format!("set both of {names}, or neither")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_give_both_of_a_pair_or_neither() {
        let read = |set: &[(&str, &str)]| {
            EtcdAccess::from_variables(|name| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| value.into())
            })
        };
        let none = read(&[]).unwrap();
        assert!(none.authority.is_none() && none.identity.is_none() && none.user.is_none());
        let user = ("QUELL_ETCD_USER", "ann");
        let all = read(&[user, ("QUELL_ETCD_PASSWORD_FILE", "secret")]).unwrap();
        assert_eq!(all.user, Some(("ann".to_owned(), "secret".into())));
        let error = read(&[user]).unwrap_err();
        assert!(error.contains("or neither"), "{error}");
        assert!(read(&[("QUELL_ETCD_KEY", "a.key")]).is_err());
    }
}
