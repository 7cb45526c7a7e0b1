//! Config store: where a coordinator keeps the fleet, as the command line names it.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use quell_coordinator::leader::{Leader, Wanted};
use quell_coordinator::session::{Session, SessionOptions};
use quell_coordinator::store::{EmbeddedStore, EtcdOptions};
use tokio::sync::watch;

use crate::etcd::EtcdAccess;
use crate::exit::Usage;

/// Where the fleet is kept.
#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    /// The URLs of etcd 3.4 or newer, with commas: the fleet is kept there, and several coordinators may
    /// run
    #[arg(
        long,
        env = "QUELL_ETCD",
        value_name = "URL",
        value_delimiter = ',',
        required_unless_present = "embedded",
        conflicts_with = "embedded"
    )]
    etcd: Vec<String>,

    /// Keep the fleet in this file, without etcd: for one coordinator
    #[arg(long, env = "QUELL_EMBEDDED", value_name = "FILE")]
    embedded: Option<PathBuf>,

    /// For etcd with https: a PEM file with the authority that signed its certificates; without it, those
    /// that this machine trusts
    // No conflict with --embedded: the rules may be in etcd all the same, and take this from the environment.
    #[arg(long, env = "QUELL_ETCD_CA", value_name = "FILE")]
    etcd_ca: Option<PathBuf>,

    /// For etcd with https: a PEM file with the certificate to show
    #[arg(
        long,
        env = "QUELL_ETCD_CERT",
        value_name = "FILE",
        requires = "etcd_key"
    )]
    etcd_cert: Option<PathBuf>,

    /// A PEM file with the private key of --etcd-cert
    #[arg(
        long,
        env = "QUELL_ETCD_KEY",
        value_name = "FILE",
        requires = "etcd_cert"
    )]
    etcd_key: Option<PathBuf>,

    /// The user of etcd
    #[arg(
        long,
        env = "QUELL_ETCD_USER",
        value_name = "NAME",
        requires = "etcd_password_file"
    )]
    etcd_user: Option<String>,

    /// A file with that user's password
    #[arg(
        long,
        env = "QUELL_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        requires = "etcd_user"
    )]
    etcd_password_file: Option<PathBuf>,
}

impl StoreArgs {
    /// Where the list of changes is, unless a flag says otherwise: beside the file.
    pub(super) fn changes(&self) -> Option<PathBuf> {
        let mut path = self.embedded.clone()?.into_os_string();
        path.push(".changes");
        Some(path.into())
    }

    /// Refuses URLs that cannot be used.
    ///
    /// # Errors
    /// [`Usage`].
    pub(super) fn check(&self) -> Result<()> {
        let is_tls = |url: &&String| url.starts_with("https://");
        let is_url = |url: &&String| url.starts_with("http://") || is_tls(url);
        if let Some(url) = self.etcd.iter().find(|url| !is_url(url)) {
            bail!(Usage(format!(
                "--etcd: `{url}` is no URL of etcd: write http://HOST:2379 or https://HOST:2379"
            )));
        }
        let says_tls = self.etcd_ca.is_some() || self.etcd_cert.is_some();
        if says_tls && let Some(url) = self.etcd.iter().find(|url| !is_tls(url)) {
            bail!(Usage(format!(
                "--etcd: {url} is not TLS: write an https URL, or leave --etcd-ca and --etcd-cert out"
            )));
        }
        Ok(())
    }

    /// Starts a coordinator over this store.
    ///
    /// # Errors
    /// Why it cannot start; that etcd does not answer is no error.
    pub(super) fn start(
        &self,
        options: SessionOptions,
        wanted: watch::Receiver<Wanted>,
    ) -> Result<Leader> {
        let Some(path) = &self.embedded else {
            let access = self.access()?;
            return Ok(Leader::start_on_etcd(
                self.etcd.clone(),
                access,
                options,
                wanted,
            )?);
        };
        let store = EmbeddedStore::open(path)?;
        let session = Session::start(store, options).context("the session has no thread")?;
        Ok(Leader::start(session, wanted))
    }

    fn access(&self) -> Result<EtcdOptions> {
        let access = EtcdAccess {
            ca: self.etcd_ca.clone(),
            identity: self.etcd_cert.clone().zip(self.etcd_key.clone()),
            user: self.etcd_user.clone().zip(self.etcd_password_file.clone()),
        };
        access.options(self.etcd.iter().any(|url| url.starts_with("https://")))
    }
}

impl fmt::Display for StoreArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.embedded {
            Some(path) => path.display().fmt(f),
            None => write!(f, "etcd at {}", self.etcd.join(", ")),
        }
    }
}
