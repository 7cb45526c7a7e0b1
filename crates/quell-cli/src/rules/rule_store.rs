//! Rule store: the store that has the rules, for the commands that read and change them.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use quell::rule_store::{
    DirectoryRules, Draft, Entry, Head, PushOutcome, RuleStore, RuleStoreError, Version,
};
use quell_core::rule::DomainRules;
use quell_host::etcd_url::EtcdUrl;
use quell_redis::{RedisRules, StoreUrl};
use quell_rules::parse_str;
use tokio::runtime::Runtime;

use crate::etcd;
use crate::exit::Usage;
use crate::output::{self, Paint};
use quell_host::wait;

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
        let versions: Arc<dyn RuleStore> = if EtcdUrl::is_meant(&self.store) {
            let url = self.store.parse::<EtcdUrl>();
            let url = url.map_err(|error| Usage(format!("--store: {error}")))?;
            etcd::open(&url)?
        } else if let Some(store) = DirectoryRules::parse(&self.store) {
            Arc::new(store.map_err(|error| Usage(format!("--store: {error}")))?)
        } else {
            Arc::new(RedisRules::new(&parse_url(&self.store)?))
        };
        Ok(OpenStore {
            runtime: runtime()?,
            versions,
        })
    }
}

/// Runtime that waits for a store.
pub(super) fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    runtime.context("cannot start a runtime")
}

/// Reads what was said of `--store`.
pub(super) fn parse_url(text: &str) -> Result<StoreUrl, Usage> {
    let url = text.parse::<StoreUrl>();
    url.map_err(|error| Usage(format!("--store: {error}")))
}

/// The rules in a store.
#[derive(Debug)]
pub(super) struct OpenStore {
    runtime: Runtime,
    versions: Arc<dyn RuleStore>,
}

/// Newest version in a store when a command begins.
#[derive(Debug)]
pub(super) struct Newest {
    pub(super) head: Option<Head>,
    /// The version behind it, unless somebody damaged it.
    pub(super) version: Option<Version>,
    /// Rules of the version, unless they have mistakes; then no change is described.
    pub(super) domains: Option<Vec<DomainRules>>,
}

impl OpenStore {
    /// URL of the store; shows no password.
    pub(super) fn url(&self) -> &str {
        self.versions.url()
    }

    /// The newest version, whatever its state.
    pub(super) fn newest(&self) -> Result<Newest> {
        let Some(head) = self.read(self.runtime.block_on(self.versions.head()))? else {
            return Ok(Newest {
                head: None,
                version: None,
                domains: Some(Vec::new()),
            });
        };
        let version = match self.runtime.block_on(self.versions.version(head.number())) {
            Err(damaged @ RuleStoreError::Damaged { .. }) => {
                warn(&damaged.to_string());
                None
            }
            other => self.read(other)?,
        };
        let version = version.filter(|version| *version.head() == head);
        let domains = version.as_ref().and_then(|version| {
            let name = format!("version {}", version.number());
            let loaded = parse_str(&name, &version.text);
            loaded.ok().map(|loaded| loaded.domains)
        });
        if domains.is_none() {
            warn("the newest version cannot be read as rules, so it is not told what changes");
        }
        Ok(Newest {
            head: Some(head),
            version,
            domains,
        })
    }

    /// The version that is meant: the newest, or `number`.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn version(&self, number: Option<u64>) -> Result<Version> {
        let found = match number {
            Some(number) => self.runtime.block_on(self.versions.version(number)),
            None => self.runtime.block_on(self.versions.latest()),
        };
        self.read(found)?.with_context(|| match number {
            Some(number) => format!(
                "{} has no version {number}: `quell rules history` lists those that are kept",
                self.url()
            ),
            None => format!(
                "{} has no rules yet: `quell rules push FILE` brings some",
                self.url()
            ),
        })
    }

    pub(super) fn history(&self, most: usize) -> Result<Vec<Entry>> {
        self.read(self.runtime.block_on(self.versions.history(most)))
    }

    pub(super) fn push(&self, from: Option<&Head>, draft: Draft<'_>) -> Result<PushOutcome> {
        let pushed = self.runtime.block_on(self.versions.push(from, draft));
        pushed.map_err(|error| {
            let url = self.url();
            let context = match &error {
                RuleStoreError::Unknown(_) => format!(
                    "nobody knows whether {url} has the new version: do the same again, it is not \
                     added twice"
                ),
                _ => format!("cannot write the rules to {url}"),
            };
            anyhow::Error::new(error).context(context)
        })
    }

    fn read<T>(&self, read: Result<T, RuleStoreError>) -> Result<T> {
        read.with_context(|| format!("cannot read the rules in {}", self.url()))
    }
}

/// A line that deserves a look.
pub(super) fn warn(text: &str) {
    output::note(format_args!(
        "{} {text}",
        Paint::stderr().yellow("warning:")
    ));
}

/// Time at which a version was pushed, to the second.
pub(super) fn when(entry: &Entry) -> String {
    wait::instant(entry.at_ms)
}
