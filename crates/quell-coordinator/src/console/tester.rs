//! Tester: which rules apply to a call, and why others do not, as `quell rules explain` says it. What a key has
//! used is known to the nodes alone.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use quell_core::cost::Cost;
use quell_core::descriptor::Query;
use quell_core::rule::DomainRules;
use quell_host::console::page::{CallForm, Fields, PageResult, or_why};
use quell_rules::{explain, parse_str};
use tokio::task::block_in_place;

use super::Console;

pub(super) const PATH: &str = "/console/try";

#[derive(Template)]
#[template(path = "fleet/try.html")]
struct TryPage<'a> {
    call: CallForm<'a>,
    /// The command that says the same, and what the rules say of the call.
    said: Option<(String, String)>,
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.reader(&request)?;
    let asked = &Fields::new(&request);
    let newest = console.admin.service.rule_distribution().newest();
    // There may be thousands of rules.
    let rules = block_in_place(|| parse_str("the rules", &newest?.text).ok());
    let rules = rules.map_or_else(Vec::new, |rules| rules.domains);
    let domains: Vec<String> = rules
        .iter()
        .map(|domain| domain.domain.to_string())
        .collect();
    let (said, done) = or_why(match asked.get("domain") {
        "" => Ok(None),
        _ => explained(&rules, asked).map(Some),
    });
    let command = asked.command("quell rules explain FILE", "", &[("--cost", asked.cost())]);
    let page = TryPage {
        said: said.flatten().map(|said| (command, said)),
        call: CallForm {
            action: PATH,
            button: "Try it",
            domains: &domains,
            asked,
        },
    };
    console.shell.answer("Try it", &viewer, &done, &page)
}

fn explained(rules: &[DomainRules], asked: &Fields) -> Result<String, String> {
    let cost = asked.or("cost", "1");
    let units = cost.parse().ok().and_then(Cost::new);
    let units =
        units.ok_or_else(|| format!("`{cost}` is not a cost: write a whole number from 1"))?;
    let query = Query::new(asked.get("domain")).cost(units);
    let entries = asked.entries()?.into_iter();
    let query = entries.fold(query, |query, (name, value)| query.entry(name, value));
    Ok(explain(rules, &query).to_string())
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
