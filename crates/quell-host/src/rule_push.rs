//! Rule push: a text that shall be the newest version of a store, compared with the version that is there.

use quell::Limiter;
use quell::rule_store::{Draft, Head, PushOutcome, RuleStoreError, Version};
use quell::store::memory::MemoryStore;
use quell_core::rule::DomainRules;
use quell_rules::{LoadedRules, Problem, RuleChanges, parse_str};
use quell_store::shares::{Shares, SharesStore};
use serde::Serialize;

use crate::newest_rules::Newest;
use crate::proposal::summary;
use crate::pulled_rules::Origin;
use crate::rule_versions::{RuleVersions, RuleVersionsError};
use crate::wait::instant;

/// Terms of a push, beside the text.
#[derive(Clone, Debug, Default)]
pub struct PushTerms {
    /// The version that must be the newest.
    pub expected: Option<u64>,
    /// Author, for the history.
    pub who: String,
    /// Reason, for the history.
    pub note: String,
    /// True if nothing is to be changed.
    pub is_dry_run: bool,
}

/// Text that is to be the newest version.
#[derive(Debug)]
pub struct ProposedText<'a> {
    /// The rules, as YAML.
    pub text: &'a str,
    /// Its meaning.
    pub loaded: LoadedRules,
    /// Remark on the change, before the rules that differ.
    pub remark: String,
}

/// A push to a store, which begins with a look at the newest version.
#[derive(Debug)]
pub struct RulePush {
    versions: RuleVersions,
    terms: PushTerms,
    newest: Newest,
    /// The rules of the newest version; `None` if they cannot be read, and then changes are not known.
    domains: Option<Vec<DomainRules>>,
}

/// The outcome of a push.
#[derive(Debug, Default, Serialize)]
pub struct PushReport {
    /// True if the store has the text, or would have it but for a dry run.
    pub ok: bool,
    /// True if there is a new version.
    pub pushed: bool,
    /// True if it was a dry run.
    pub dry_run: bool,
    /// The newest version now.
    pub version: Option<u64>,
    /// The newest version before.
    pub from: Option<u64>,
    /// The rules that differ.
    pub changes: RuleChanges,
    /// Reason why nothing was pushed.
    pub reason: Option<String>,
    /// Mistakes in the text.
    pub problems: Vec<Problem>,
    /// Doubts about the text.
    pub warnings: Vec<Problem>,
}

impl PushReport {
    /// Of a text with mistakes, which is not pushed.
    #[must_use]
    pub fn mistakes(problems: Vec<Problem>, is_dry_run: bool) -> Self {
        Self {
            reason: Some("the rules have mistakes: nothing is pushed".to_owned()),
            problems,
            dry_run: is_dry_run,
            ..Self::default()
        }
    }
}

impl RulePush {
    /// Reads the newest version.
    ///
    /// # Errors
    /// [`RuleVersionsError::Read`].
    pub async fn begin(
        versions: RuleVersions,
        terms: PushTerms,
    ) -> Result<Self, RuleVersionsError> {
        let newest = versions.newest().await?;
        let domains = match (&newest.head, &newest.version) {
            (None, _) => Some(Vec::new()),
            (Some(_), None) => None,
            (Some(_), Some(version)) => {
                let loaded = parse_str(&format!("version {}", version.number()), &version.text);
                loaded.ok().map(|loaded| loaded.domains)
            }
        };
        Ok(Self {
            versions,
            terms,
            newest,
            domains,
        })
    }

    /// The versions in the store.
    #[must_use]
    pub const fn versions(&self) -> &RuleVersions {
        &self.versions
    }

    /// The newest version, if there is one that can be read.
    #[must_use]
    pub const fn newest(&self) -> Option<&Version> {
        self.newest.version.as_ref()
    }

    /// Faults of the newest version.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let unknown = self.domains.is_none().then(|| {
            "the newest version cannot be read as rules, so the change is not described".to_owned()
        });
        self.newest
            .damage
            .clone()
            .into_iter()
            .chain(unknown)
            .collect()
    }

    /// Reason why nothing may be pushed: the newest version is not the expected one, which the terms or else a
    /// file name.
    #[must_use]
    pub fn unmet(&self, in_file: Option<Origin>) -> Option<String> {
        let said = self.terms.expected.map(|number| Origin {
            number,
            digest: None,
        });
        let expected = said.or(in_file)?;
        if expected.is(self.newest.head.as_ref()) {
            return None;
        }
        Some(match &self.newest.head {
            None => format!(
                "{} has no rules yet, and this text was made from version {}: push it without that version (no --expect, \
                 and no first line of a pulled file)",
                self.versions.url(),
                expected.number
            ),
            Some(head) => format!(
                "this text was made from version {}, and {}: pull that version and make your change there, or pass \
                 --expect {} to replace it",
                expected.number,
                whose(&self.newest, head.number()),
                head.number()
            ),
        })
    }

    /// The report if nothing is pushed, and why.
    #[must_use]
    pub fn refused(&self, reason: String) -> PushReport {
        PushReport {
            reason: Some(reason),
            ..self.report()
        }
    }

    /// Pushes `proposed` in place of the newest version, unless that is the same or it is a dry run.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn push(&self, proposed: ProposedText<'_>) -> Result<PushReport, RuleVersionsError> {
        let ProposedText {
            text,
            loaded,
            remark,
        } = proposed;
        let after = &loaded.domains;
        let any_store = SharesStore::new(MemoryStore::new(), Shares::new());
        if let Err(error) = Limiter::new(any_store).set_rules(after.clone()) {
            return Ok(self.refused(error.to_string()));
        }
        let before = self.domains.as_ref();
        let changes = before.map(|before| RuleChanges::between_domains(before, after));
        let change = format!("{remark}{}", summary(changes.as_ref()));
        let mut report = PushReport {
            ok: true,
            changes: changes.unwrap_or_default(),
            // Sound for some servers, and refused by those that share their states.
            warnings: [loaded.warnings, loaded.undeclared].concat(),
            ..self.report()
        };
        if let Some(version) = self.newest().filter(|version| version.text == text) {
            let number = version.number();
            report.reason = Some(format!("nothing to do: version {number} says the same"));
        } else if self.terms.is_dry_run {
            report.reason = Some("a dry run: nothing is pushed".to_owned());
        } else {
            self.write(text, &change, &mut report).await?;
        }
        Ok(report)
    }

    /// Adds the version, and notes what came of it.
    async fn write(
        &self,
        text: &str,
        change: &str,
        report: &mut PushReport,
    ) -> Result<(), RuleVersionsError> {
        let draft = Draft {
            text,
            who: &self.terms.who,
            change,
            note: &self.terms.note,
        };
        let pushed = self.versions.store.push(self.newest.head.as_ref(), draft);
        let pushed = pushed.await.map_err(|source| {
            let url = self.versions.url().to_owned();
            match source {
                RuleStoreError::Unknown(_) => RuleVersionsError::Unknown { url, source },
                _ => RuleVersionsError::Write { url, source },
            }
        });
        match pushed? {
            PushOutcome::Done(head) => {
                report.pushed = true;
                report.version = Some(head.number());
            }
            PushOutcome::Overtaken(_) => {
                let now = self.versions.newest().await?;
                let other = now.head.as_ref().map_or_else(
                    || "the rules are gone from the store".to_owned(),
                    |head| whose(&now, head.number()),
                );
                report.ok = false;
                report.version = now.head.as_ref().map(Head::number);
                report.reason = Some(format!(
                    "another push came first, so this one is not made: {other}; look at that version, and push again"
                ));
            }
        }
        Ok(())
    }

    /// The report as long as nothing is pushed.
    fn report(&self) -> PushReport {
        let number = self.newest.head.as_ref().map(Head::number);
        PushReport {
            dry_run: self.terms.is_dry_run,
            version: number,
            from: number,
            ..PushReport::default()
        }
    }
}

/// `version 8, by bob at 2026-.., is the newest`.
fn whose(newest: &Newest, number: u64) -> String {
    match &newest.version {
        Some(version) => {
            let entry = &version.entry;
            let when = instant(entry.at_ms);
            format!(
                "version {number}, by {} at {when}, is the newest",
                entry.who
            )
        }
        None => format!("version {number} is the newest"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quell::rule_store::DirectoryRules;

    use super::*;

    const TEXT: &str =
        "domain: shop\nrules: [{ name: login, algorithm: sliding_log, limit: 5/min }]";

    fn proposed(text: &str) -> ProposedText<'_> {
        ProposedText {
            text,
            loaded: parse_str("a text", text).unwrap(),
            remark: String::new(),
        }
    }

    #[tokio::test]
    async fn a_text_is_pushed_once_and_only_from_the_version_that_it_was_made_from() {
        let folder = tempfile::tempdir().unwrap();
        let versions = RuleVersions::new(Arc::new(DirectoryRules::new(folder.path())));
        let begin = async |expected, is_dry_run| {
            let terms = PushTerms {
                expected,
                is_dry_run,
                who: "ann".to_owned(),
                ..PushTerms::default()
            };
            RulePush::begin(versions.clone(), terms).await.unwrap()
        };
        let dry = begin(None, true).await.push(proposed(TEXT)).await.unwrap();
        assert!(dry.ok && !dry.pushed && dry.version.is_none(), "{dry:?}");
        let (first, late) = (begin(None, false).await, begin(None, false).await);
        let done = first.push(proposed(TEXT)).await.unwrap();
        assert!(done.pushed && done.version == Some(1), "{done:?}");
        let raised = TEXT.replace("5/min", "9/min");
        let overtaken = late.push(proposed(&raised)).await.unwrap();
        let reason = overtaken.reason.unwrap();
        assert!(
            !overtaken.ok && reason.contains("version 1, by ann at"),
            "{reason}"
        );
        let again = begin(Some(1), false).await;
        assert_eq!((again.unmet(None), again.warnings().len()), (None, 0));
        let same = again.push(proposed(TEXT)).await.unwrap();
        assert!(same.ok && !same.pushed, "{same:?}");
        let unmet = begin(Some(7), false).await.unmet(None).unwrap();
        assert!(unmet.contains("pass --expect 1"), "{unmet}");
        let gone = versions.version(Some(7)).await.unwrap_err().to_string();
        assert!(gone.contains("has no version 7"), "{gone}");
        assert_eq!(versions.history(9).await.unwrap().len(), 1);
    }
}
