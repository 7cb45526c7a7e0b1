//! Rule store: the store that has the rules, for the commands that read and change them.

use std::future::Future;

use anyhow::{Context, Result};
use clap::Args;
use quell_coordinator::config_rules::open_etcd;
use quell_host::rule_source::RuleSource;
use quell_host::rule_tests::StoreUrl;
use quell_host::rule_versions::RuleVersions;
use tokio::runtime::Runtime;

use crate::etcd;
use crate::exit::Usage;

/// Store of rules.
#[derive(Debug, Args)]
pub(super) struct StoreArg {
    /// The store that has the rules: redis://HOST:PORT/DATABASE or another `--store` of `quell serve`,
    /// etcd://HOST:2379/NAME, or file://DIRECTORY for servers of one machine
    // No value parser: the words of clap would show the password of a URL that is none.
    #[arg(
        long = "store",
        env = "QUELL_RULES_STORE",
        hide_env_values = true,
        value_name = "URL"
    )]
    store: String,
}

impl StoreArg {
    /// # Errors
    /// [`Usage`] if the URL is none.
    pub(super) fn open(&self) -> Result<OpenStore> {
        let wrong = |reason| Usage(format!("--store: {reason}"));
        let source = RuleSource::parse_store(&self.store).map_err(wrong)?;
        let store = source.open(|url| -> Result<_> { Ok(open_etcd(url, &etcd::access()?)?) });
        let store = store.context("--store names no store")??;
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build();
        Ok(OpenStore {
            runtime: runtime.context("cannot start a runtime")?,
            versions: RuleVersions::new(store),
        })
    }
}

/// Reads what was said of `--store`.
pub(super) fn parse_url(text: &str) -> Result<StoreUrl, Usage> {
    let url = text.parse::<StoreUrl>();
    url.map_err(|error| Usage(format!("--store: {error}")))
}

/// The rules in a store, and what waits for it.
#[derive(Debug)]
pub(super) struct OpenStore {
    runtime: Runtime,
    pub(super) versions: RuleVersions,
}

impl OpenStore {
    pub(super) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }
}
