//! Rules in the configuration store, as versions: a [`RuleStore`] over any [`ConfigStore`].
//!
//! ```text
//! /quell-rules/NAME/head                         7 1f2e3d4c5b6a
//! /quell-rules/NAME/entry/00000000000000000007   who, when and why, as JSON
//! /quell-rules/NAME/text/00000000000000000007    the rules
//! ```
//!
//! A push is one transaction, on the condition that the head was not changed since it was read. The keys
//! are not among those of a fleet, which each coordinator keeps a copy of.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell::rule_store::{
    Draft, Entry, Head, KEPT_BYTES, POLL, PushOutcome, Reply, RuleStore, RuleStoreError, Version,
    Waiting, leaving,
};
use quell_host::etcd_url::EtcdUrl;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use crate::config::EtcdAccess;
use crate::error::ServeError;
use crate::leader::StartError;
use crate::store::{
    Condition, ConfigStore, EtcdOptions, Listing, MAX_WRITE, StoreError, Transaction, Watch, Write,
};

/// Most versions kept, beside the bound of their bytes.
const KEPT: u64 = 200;

/// Most versions that one push drops: etcd takes 128 writes at once. What is left goes with the next.
const MAX_DROPPED: usize = 50;

/// Longest time for one call.
const CALL: Duration = Duration::from_secs(3);

/// Most tries of a read: each one that fails goes to another endpoint the next time.
const TRIES: usize = 3;

/// A watch is not trusted for longer: it may have fallen silent.
const RELIST: Duration = Duration::from_secs(10);

/// The rules in a configuration store.
#[derive(Debug)]
pub struct ConfigRules<S> {
    store: Arc<S>,
    /// Prefix of all keys.
    prefix: String,
    url: String,
    kept_bytes: u64,
}

/// A version without its text, as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredEntry {
    head: String,
    at_ms: u64,
    who: String,
    change: String,
    note: String,
    /// Of the text.
    bytes: u64,
}

/// Opens the rules in etcd at `url`.
///
/// # Errors
/// If what `access` names cannot be read, or this program was built without etcd; that etcd does not answer is no
/// error.
pub fn open_etcd(url: &EtcdUrl, access: &EtcdAccess) -> Result<Arc<dyn RuleStore>, ServeError> {
    let access = access.options(url.is_tls())?;
    let shown = url.to_string();
    Ok(in_etcd(url.endpoints(), access, url.name(), &shown)?)
}

/// The rules called `name` in the etcd at these URLs; `shown` is what messages call it.
///
/// # Errors
/// [`StartError`]; that etcd does not answer is none.
#[cfg(feature = "etcd")]
pub fn in_etcd(
    urls: Vec<String>,
    access: EtcdOptions,
    name: &str,
    shown: &str,
) -> Result<Arc<dyn RuleStore>, StartError> {
    let store = crate::store::EtcdStore::new(urls, access)?;
    Ok(Arc::new(ConfigRules::new(Arc::new(store), name, shown)))
}

/// A build without etcd has none.
///
/// # Errors
/// [`StartError::NoEtcd`], always.
#[cfg(not(feature = "etcd"))]
pub fn in_etcd(
    _urls: Vec<String>,
    _access: EtcdOptions,
    _name: &str,
    _shown: &str,
) -> Result<Arc<dyn RuleStore>, StartError> {
    Err(StartError::NoEtcd)
}

impl<S: ConfigStore> ConfigRules<S> {
    /// The rules called `name` in `store`; `shown` is what messages call it.
    #[must_use]
    pub fn new(store: Arc<S>, name: &str, shown: &str) -> Self {
        Self {
            store,
            prefix: format!("/quell-rules/{name}/"),
            url: shown.to_owned(),
            kept_bytes: KEPT_BYTES,
        }
    }

    /// The same with at most so many bytes of texts. Default: [`KEPT_BYTES`].
    #[must_use]
    pub const fn with_kept_bytes(mut self, bytes: u64) -> Self {
        self.kept_bytes = bytes;
        self
    }

    fn head_key(&self) -> String {
        format!("{}head", self.prefix)
    }

    /// Numbers are as long as each other, so that none begins with another.
    fn key(&self, kind: &str, number: u64) -> String {
        format!("{}{kind}/{number:020}", self.prefix)
    }

    async fn read(&self, prefix: &str) -> Result<Listing, RuleStoreError> {
        let mut tries = 1;
        loop {
            match self.store.read(prefix, CALL).await {
                Err(error) if error.is_passing() && tries < TRIES => tries += 1,
                Err(error) => return Err(RuleStoreError::NoAnswer(error.to_string())),
                Ok(listing) => return Ok(listing),
            }
        }
    }

    /// The head, the revision that changed it, and that of the store.
    async fn read_head(&self) -> Result<(Option<Head>, u64, u64), RuleStoreError> {
        let key = self.head_key();
        let listing = self.read(&key).await?;
        let Some(stored) = listing.entries.get(&key) else {
            return Ok((None, 0, listing.revision));
        };
        let head = str::from_utf8(&stored.value).ok().and_then(Head::parse);
        let head = head.ok_or_else(|| RuleStoreError::damaged(key, "does not name a version"))?;
        Ok((Some(head), stored.changed, listing.revision))
    }

    async fn read_version(&self, number: u64) -> Result<Option<Version>, RuleStoreError> {
        let key = self.key("entry", number);
        let listing = self.read(&key).await?;
        let Some(stored) = listing.entries.get(&key) else {
            return Ok(None);
        };
        let entry = entry(&key, &stored.value)?;
        let key = self.key("text", number);
        let mut listing = self.read(&key).await?;
        let text = listing.entries.remove(&key);
        let text = text.and_then(|stored| String::from_utf8(stored.value).ok());
        let text = text.ok_or_else(|| RuleStoreError::damaged(&*key, "has no text"))?;
        Version::new(entry, text, &key).map(Some)
    }

    async fn add(
        &self,
        from: Option<&Head>,
        draft: Draft<'_>,
    ) -> Result<PushOutcome, RuleStoreError> {
        let next = Head::after(from, draft.text);
        let (head, changed, _) = self.read_head().await?;
        if head.as_ref() == Some(&next) {
            return Ok(PushOutcome::Done(next));
        }
        if head.as_ref() != from {
            return Ok(PushOutcome::Overtaken(head));
        }
        let leaving = self.leaving(&next, draft.text).await?;
        let transaction = self.transaction(&next, changed, draft, leaving)?;
        match self.store.commit(transaction, CALL).await {
            Ok(committed) if committed.succeeded => Ok(PushOutcome::Done(next)),
            Ok(_) => match self.read_head().await?.0 {
                Some(head) if head == next => Ok(PushOutcome::Done(next)),
                head => Ok(PushOutcome::Overtaken(head)),
            },
            Err(StoreError::TooLarge { bytes }) => Err(RuleStoreError::Unfit(format!(
                "these rules are {bytes} bytes, and etcd takes {MAX_WRITE} at once: write fewer or shorter \
                 rules, or keep them under two names, and give servers both (--rules URL,URL)"
            ))),
            Err(error) if error.is_passing() => Err(RuleStoreError::Unknown(error.to_string())),
            Err(error) => Err(RuleStoreError::NoAnswer(error.to_string())),
        }
    }

    /// The versions that go when `next` comes with this text.
    async fn leaving(&self, next: &Head, text: &str) -> Result<Vec<u64>, RuleStoreError> {
        let listing = self.read(&format!("{}entry/", self.prefix)).await?;
        let sizes = listing.entries.iter().rev().filter_map(|(key, stored)| {
            let number: u64 = key.rsplit('/').next()?.parse().ok()?;
            let entry = serde_json::from_slice::<StoredEntry>(&stored.value);
            Some((number, entry.map_or(0, |entry| entry.bytes)))
        });
        // An earlier history may have left numbers above.
        let before = sizes.filter(|(number, _)| *number < next.number());
        let all = [(next.number(), text.len() as u64)]
            .into_iter()
            .chain(before);
        let mut leaving = leaving(all, KEPT, self.kept_bytes);
        // The oldest first.
        leaving.reverse();
        leaving.truncate(MAX_DROPPED);
        Ok(leaving)
    }

    fn transaction(
        &self,
        next: &Head,
        changed: u64,
        draft: Draft<'_>,
        leaving: Vec<u64>,
    ) -> Result<Transaction, RuleStoreError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = since.unwrap_or_default().as_millis();
        let entry = StoredEntry {
            head: next.to_string(),
            at_ms: u64::try_from(millis).unwrap_or(u64::MAX),
            who: draft.who.to_owned(),
            change: draft.change.to_owned(),
            note: draft.note.to_owned(),
            bytes: draft.text.len() as u64,
        };
        let entry = serde_json::to_vec(&entry);
        let entry = entry.map_err(|error| RuleStoreError::Unfit(error.to_string()))?;
        let number = next.number();
        let mut writes = vec![
            Write::put(self.head_key(), next.to_string().into_bytes()),
            Write::put(self.key("entry", number), entry),
            Write::put(self.key("text", number), draft.text.into()),
        ];
        for leaves in leaving {
            writes.push(Write::delete(self.key("entry", leaves)));
            writes.push(Write::delete(self.key("text", leaves)));
        }
        Ok(Transaction {
            conditions: vec![Condition::Changed {
                key: self.head_key(),
                revision: changed,
            }],
            writes,
        })
    }

    /// Returns when the head is another one than `seen`, as far as a watch tells.
    async fn watch(&self, seen: Option<&Head>) -> Result<(), RuleStoreError> {
        let (head, _, revision) = self.read_head().await?;
        if head.as_ref() != seen {
            return Ok(());
        }
        let ended = |error: StoreError| RuleStoreError::NoAnswer(error.to_string());
        let key = self.head_key();
        let watch = self.store.watch(&key, revision + 1, CALL);
        let mut watch = watch.await.map_err(ended)?;
        while watch.next().await.map_err(ended)?.is_empty() {}
        Ok(())
    }
}

impl<S: ConfigStore> RuleStore for ConfigRules<S> {
    fn url(&self) -> &str {
        &self.url
    }

    fn kept(&self) -> u64 {
        KEPT
    }

    fn head(&self) -> Reply<'_, Option<Head>> {
        Box::pin(async { Ok(self.read_head().await?.0) })
    }

    fn version(&self, number: u64) -> Reply<'_, Option<Version>> {
        Box::pin(self.read_version(number))
    }

    fn history(&self, most: usize) -> Reply<'_, Vec<Entry>> {
        Box::pin(async move {
            let listing = self.read(&format!("{}entry/", self.prefix)).await?;
            let newest = listing.entries.iter().rev().take(most);
            newest
                .map(|(key, stored)| entry(key, &stored.value))
                .collect()
        })
    }

    fn push<'a>(&'a self, from: Option<&'a Head>, draft: Draft<'a>) -> Reply<'a, PushOutcome> {
        Box::pin(self.add(from, draft))
    }

    /// A watch may end or fall silent: then the head is read again, after a second or after ten.
    fn wait<'a>(&'a self, seen: Option<&'a Head>) -> Waiting<'a> {
        Box::pin(async move {
            if let Ok(Err(_)) = timeout(RELIST, self.watch(seen)).await {
                sleep(POLL).await;
            }
        })
    }
}

fn entry(key: &str, value: &[u8]) -> Result<Entry, RuleStoreError> {
    let stored: Option<StoredEntry> = serde_json::from_slice(value).ok();
    let head = stored.as_ref().and_then(|stored| Head::parse(&stored.head));
    let is_its_own = |head: &Head| key.ends_with(&format!("/{:020}", head.number()));
    match (stored, head.filter(is_its_own)) {
        (Some(stored), Some(head)) => {
            let draft = Draft {
                text: "",
                who: &stored.who,
                change: &stored.change,
                note: &stored.note,
            };
            Ok(Entry::new(head, stored.at_ms, &draft))
        }
        _ => Err(RuleStoreError::damaged(key, "is not as a push leaves it")),
    }
}
