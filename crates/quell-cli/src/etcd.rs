//! etcd: rules in it, with the access that the environment has.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use quell::rule_store::RuleStore;
use quell_coordinator::config::EtcdAccess;
use quell_coordinator::rules;
use quell_host::etcd_url::EtcdUrl;

use crate::exit::Usage;

/// Access to etcd, from the variables of `quell fleet coordinator`.
///
/// # Errors
/// [`Usage`] if one of a pair is missing.
pub(crate) fn access() -> Result<EtcdAccess> {
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
    Ok(EtcdAccess {
        authority: file("QUELL_ETCD_CA"),
        identity: cert.zip(key),
        user: user.zip(password),
    })
}

/// The rules at `url`, with the access that the environment has.
///
/// # Errors
/// If that cannot be read, or this program was built without etcd.
pub(crate) fn open(url: &EtcdUrl) -> Result<Arc<dyn RuleStore>> {
    let access = access()?.options(url.is_tls())?;
    let shown = url.to_string();
    Ok(rules::in_etcd(url.endpoints(), access, url.name(), &shown)?)
}
