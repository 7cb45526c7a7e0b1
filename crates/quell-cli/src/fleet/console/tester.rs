//! Tester: which rules apply to a call, and why others do not, as `quell rules explain` says it. What a key has
//! used is known to the nodes alone.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use quell_core::rule::DomainRules;
use quell_rules::{explain, parse_str};
use quell_server::access::Role;
use quell_server::console::{Fields, PageResult, Shell};
use tokio::task::block_in_place;

use super::Console;
use super::overview::framed;
use crate::entry;

pub(super) const PATH: &str = "/console/try";

#[derive(Template)]
#[template(path = "fleet/try.html")]
struct TryPage<'a> {
    asked: &'a Fields,
    domains: Vec<&'a str>,
    /// What the rules say of the call, or what is wrong with it; `None`: nothing was asked for.
    said: Option<Result<String, String>>,
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = Shell::caller(&request, Role::Read)?;
    let asked = Fields::of(&request);
    let newest = console.admin.service.handout().newest();
    // There may be thousands of rules.
    let rules = block_in_place(|| parse_str("the rules", &newest?.text).ok());
    let domains = rules.map_or_else(Vec::new, |rules| rules.domains);
    let page = TryPage {
        domains: domains.iter().map(|domain| &*domain.domain).collect(),
        said: (!asked.get("domain").is_empty()).then(|| explained(&domains, &asked)),
        asked: &asked,
    };
    framed(&console, &caller, "Try it", &page)
}

fn explained(domains: &[DomainRules], asked: &Fields) -> Result<String, String> {
    let lines = asked.get("entries").lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty());
    let entries: Vec<_> = lines
        .map(|line| entry::read(line.as_ref()))
        .collect::<Result<_, _>>()?;
    let query = entry::query(
        asked.get("domain"),
        &entries,
        entry::cost(asked.word("cost"))?,
    );
    let query = query.map_err(|error| error.to_string())?;
    Ok(explain(domains, &query).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_explained_or_what_is_wrong_with_it() {
        let rules = "domain: shop\nrules: [{ name: login, match: { path: /login }, per: [user], rate: 5/s }]";
        let domains = parse_str("the rules", rules).unwrap().domains;
        let of = |entries: &str| {
            let cost = u8::from(!entries.is_empty());
            let query = format!("domain=shop&cost={cost}&entries={entries}");
            explained(&domains, &Fields::parse(query.as_bytes()))
        };
        let said = of("path%3D%2Flogin%0D%0Auser%3D%3Cb%3Eann").unwrap();
        assert!(said.contains("login") && said.contains("5/s"), "{said}");
        assert!(of("path%3D%2F").unwrap().contains("no limit applies"));
        for wrong in ["path", "a%3D1%0Aa%3D2", ""] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
