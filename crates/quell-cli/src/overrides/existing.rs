//! Existing: the overrides that a server has, page by page.

use std::collections::{BTreeSet, HashSet};

use anyhow::Result;
use clap::Args;
use quell_protocol::http::{OverriddenKeyBody, OverrideRecordBody, OverridesBody};

use super::PATH;
use super::key::{is_reserved, key_path, segment};
use super::row::{OverrideName, Row};
use crate::client::Client;
use crate::output;
use crate::progress::Progress;

/// The most overrides of a page.
const PAGE: usize = 1_000;

/// The most keys that are read one by one: a domain may have a million others.
const SINGLE_KEYS: usize = 50;

/// Which overrides of a domain.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Filter {
    /// Only those of this rule; '*', in quotes, for those of every rule
    #[arg(long, short, value_name = "RULE")]
    pub(super) rule: Option<String>,

    /// Only those that say this plan
    #[arg(long, value_name = "PLAN")]
    plan: Option<String>,

    /// Only keys whose first value, in the order of the entries' names, begins so
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
}

/// End of a reading of pages.
#[derive(Clone, Debug, Default)]
pub(super) struct PagesEnd {
    /// Cursor of the next page.
    pub(super) next: Option<String>,
    /// True if the store came back empty, and servers go on with what it does not have.
    pub(super) emptied: bool,
}

/// Says that a server goes on with what its store does not have.
pub(super) fn note_emptied() {
    output::note(
        "the store of overrides is empty: servers go on with those that they had, which are not shown here, until \
         something is written to it. Bring back all of them in one batch (`quell overrides import --batch 10000`)",
    );
}

/// Reads at most so many overrides, and gives page after page to `each`, until that returns false.
pub(super) fn read_pages(
    client: &Client,
    domain: &str,
    filter: &Filter,
    most: usize,
    each: &mut dyn FnMut(Vec<OverrideRecordBody>) -> Result<bool>,
) -> Result<PagesEnd> {
    let (mut end, mut read) = (PagesEnd::default(), 0_usize);
    loop {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("most", &(most - read).min(PAGE).to_string());
        for (name, value) in [
            ("rule", &filter.rule),
            ("plan", &filter.plan),
            ("prefix", &filter.prefix),
            ("cursor", &end.next),
        ] {
            query.extend_pairs(value.iter().map(|value| (name, value)));
        }
        let path = format!("{PATH}/{}?{}", segment(domain), query.finish());
        let page: OverridesBody = client.get(&path)?.good()?.json()?;
        read += page.overrides.len();
        let goes_on = each(page.overrides)?;
        end.next = page.next;
        end.emptied |= page.emptied;
        if end.next.is_none() || read >= most || !goes_on {
            return Ok(end);
        }
    }
}

/// Gives the overrides of the rules of `names` to `each`: those with these names, and perhaps others; all if `all` is
/// set. Returns the numbers of names of which the server says that no key is named so, and why.
pub(super) fn read_existing(
    client: &Client,
    domain: &str,
    names: &[&OverrideName],
    all: bool,
    each: &mut dyn FnMut(Row),
) -> Result<Vec<(usize, String)>> {
    let (mut progress, mut count) = (Progress::stderr(), 0);
    let mut take = |records: Vec<OverrideRecordBody>| -> Result<bool> {
        count += records.len();
        for record in records {
            each(Row::from_record(record)?);
        }
        progress.show(format_args!("{count} overrides of the server are read"));
        Ok(true)
    };
    let mut refused = Vec::new();
    let is_readable = |name: &&OverrideName| {
        let mut entries = name.entries.iter();
        !entries.any(|(entry, _)| is_reserved(entry))
    };
    if !all && names.len() <= SINGLE_KEYS && names.iter().all(is_readable) {
        // Both overrides of a key come with it.
        let mut keys = HashSet::new();
        for (index, name) in names.iter().enumerate() {
            if !keys.insert((&name.rule, &name.entries)) {
                continue;
            }
            let entries = name.entries.iter();
            let entries = entries.map(|(entry, value)| (entry.clone(), &**value));
            let answer = client.get(&key_path(domain, &name.rule, entries, &[]))?;
            match answer.wrong_question() {
                Some(detail) => refused.push((index, detail)),
                None => {
                    let key: OverriddenKeyBody = answer.good()?.json()?;
                    take(key.overrides)?;
                }
            }
        }
    } else {
        let rules: BTreeSet<&str> = names.iter().map(|name| &*name.rule).collect();
        for rule in rules {
            let filter = Filter {
                rule: Some(rule.to_owned()),
                ..Filter::default()
            };
            read_pages(client, domain, &filter, usize::MAX, &mut take)?;
        }
    }
    Ok(refused)
}
