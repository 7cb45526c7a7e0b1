//! Config store: the flags about where a coordinator keeps the fleet.

use std::path::PathBuf;

use clap::Args;
use quell_coordinator::config::{EtcdAccess, FleetStore};

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
    pub(super) fn config(self) -> FleetStore {
        if let Some(path) = self.embedded {
            return FleetStore::Embedded(path);
        }
        FleetStore::Etcd {
            urls: self.etcd,
            access: EtcdAccess {
                authority: self.etcd_ca,
                identity: self.etcd_cert.zip(self.etcd_key),
                user: self.etcd_user.zip(self.etcd_password_file),
            },
        }
    }
}
