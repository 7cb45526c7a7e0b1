//! Newest rules: what stands in a store, which a text is to take the place of.

use quell::rule_store::{Draft, Head, RuleStore, RuleStoreError, Version};
use quell_protocol::http::Problem;
use quell_rules::{join_texts, read_texts};

use crate::proposal::{Before, Proposal};
use crate::rules_host::{RulesHost, RulesPlace, failed, store_at};
use crate::task;

/// Current rules of a store.
#[derive(Debug, Clone)]
pub(crate) struct Newest {
    /// Head of the version; none if there is none.
    pub head: Option<Head>,
    /// The version, if it can be read.
    pub version: Option<Version>,
    /// Fault of the version of the head, if it cannot be read.
    pub damage: Option<String>,
}

impl Newest {
    /// Reads this store.
    pub(crate) async fn read(store: &dyn RuleStore) -> Result<Self, RuleStoreError> {
        let (version, damage) = match store.latest().await {
            Ok(version) => (version, None),
            Err(damaged @ RuleStoreError::Damaged { .. }) => (None, Some(damaged.to_string())),
            Err(error) => return Err(error),
        };
        let head = match damage {
            None => version.as_ref().map(|version| version.head().clone()),
            Some(_) => store.head().await?,
        };
        Ok(Self {
            head,
            version,
            damage,
        })
    }

    /// Reads the store at this place or, where there is no store, the files.
    pub(crate) async fn new(host: &dyn RulesHost, place: usize) -> Result<Self, Box<Problem>> {
        let paths = host.paths();
        match host.stores().is_empty() {
            false => {
                let newest = Self::read(&*store_at(host, place)?.store).await;
                newest.map_err(|error| failed(&error))
            }
            true => {
                let read = task::run_blocking(move || read_texts(&paths)).await;
                let text = read.and_then(Result::ok);
                let text = text.map(|texts| join_texts(&texts.files));
                let unreadable = || "the rules files cannot be read".to_owned();
                Ok(Self {
                    head: None,
                    damage: text.is_none().then(unreadable),
                    version: text.map(|text| {
                        let draft = Draft {
                            text: &text,
                            who: "",
                            change: "",
                            note: "",
                        };
                        Version::from_draft(0, 0, &draft)
                    }),
                })
            }
        }
    }

    /// Reason why it is not in force, although it is as it was read last.
    pub(crate) fn trouble(&self, of: &RulesPlace) -> Option<String> {
        let is_emptied = self.head.is_none() && of.newest.is_some();
        let emptied = || "The store has no rules any more: what was read last goes on".to_owned();
        self.damage.clone().or_else(|| is_emptied.then(emptied))
    }

    /// The version in words; empty if there is none.
    pub(crate) fn from(&self) -> String {
        self.head
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    /// Changes that a text would make. Takes long.
    pub(crate) fn propose(&self, text: &str, host: &dyn RulesHost) -> Proposal {
        let number = self.head.as_ref().map_or(0, Head::number);
        let before = match (&self.version, &self.damage) {
            (Some(version), _) => Before::Text(&version.text),
            (None, None) => Before::Nothing,
            (None, Some(_)) => Before::Unreadable,
        };
        Proposal::new(text, number.saturating_add(1), before, host)
    }
}
