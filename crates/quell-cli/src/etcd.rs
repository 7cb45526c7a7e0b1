//! etcd: what a command shows to it, and rules in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use quell::rule_store::RuleStore;
use quell_coordinator::rules;
use quell_coordinator::store::{EtcdOptions, EtcdTls};
use quell_host::etcd_url::EtcdUrl;

use crate::exit::Usage;

/// What etcd asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct EtcdAccess {
    /// A PEM file with the authority that signed its certificates; the system's without one.
    pub(crate) ca: Option<PathBuf>,
    /// PEM files with the certificate to show, and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// A user, and a file with the password.
    pub(crate) user: Option<(String, PathBuf)>,
}

impl EtcdAccess {
    /// What the variables of `quell fleet coordinator` say.
    fn from_environment() -> Result<Self> {
        let file = |name| std::env::var_os(name).map(PathBuf::from);
        let both = |one: bool, other: bool, names: &str| match one == other {
            true => Ok(()),
            false => bail!(Usage(format!("set both of {names}, or neither"))),
        };
        let (cert, key) = (file("QUELL_ETCD_CERT"), file("QUELL_ETCD_KEY"));
        let names = "QUELL_ETCD_CERT and QUELL_ETCD_KEY";
        both(cert.is_some(), key.is_some(), names)?;
        let user = std::env::var("QUELL_ETCD_USER").ok();
        let password = file("QUELL_ETCD_PASSWORD_FILE");
        let names = "QUELL_ETCD_USER and QUELL_ETCD_PASSWORD_FILE";
        both(user.is_some(), password.is_some(), names)?;
        Ok(Self {
            ca: file("QUELL_ETCD_CA"),
            identity: cert.zip(key),
            user: user.zip(password),
        })
    }

    /// Reads the files.
    ///
    /// # Errors
    /// If one cannot be read.
    pub(crate) fn options(&self, is_tls: bool) -> Result<EtcdOptions> {
        let user = self.user.as_ref().map(|(name, file)| {
            let password = String::from_utf8(read(file)?);
            let password = password.with_context(|| format!("{} is no text", file.display()))?;
            anyhow::Ok((name.clone(), password.trim().to_owned()))
        });
        let identity = self.identity.as_ref();
        let identity = identity.map(|(cert, key)| anyhow::Ok((read(cert)?, read(key)?)));
        let tls = EtcdTls {
            authority: self.ca.as_deref().map(read).transpose()?,
            identity: identity.transpose()?,
        };
        Ok(EtcdOptions {
            user: user.transpose()?,
            tls: is_tls.then_some(tls),
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The rules at `url`, with the access that the environment has.
///
/// # Errors
/// If that cannot be read, or this program was built without etcd.
pub(crate) fn open(url: &EtcdUrl) -> Result<Arc<dyn RuleStore>> {
    let access = EtcdAccess::from_environment()?.options(url.is_tls())?;
    let shown = url.to_string();
    Ok(rules::in_etcd(url.endpoints(), access, url.name(), &shown)?)
}
