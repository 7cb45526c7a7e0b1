//! Keys: which rules a call matches and what they answer now, without charging it; forgiving, banning, and
//! lifting bans.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use quell::Verdict;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::descriptor::Query;
use quell_core::rule::{ActiveRule, DomainRules, Effect};
use quell_protocol::http::{self, Problem};
use quell_rules::{RuleExplanation, explain};
use serde_json::{Map, Value, json};

use super::Console;
use super::overview::words;
use super::page::{self, Fields, Head, PageResult, reader};
use crate::access::{Caller, Role};
use crate::http::admin::{self, Operator, ReadAction};
use crate::http::caller::address as client_address;
use crate::http::hold_list::{HoldBody, HoldList};
use crate::http::reply;
use crate::shared::Shared;
use crate::shell_word::quoted;
use crate::top::{Refusal, Refused, Why};

pub(super) const PATH: &str = "/console/keys";

/// Rules that do not match and are shown all the same, with the reason.
const MOST_OTHERS: usize = 50;

#[derive(Template)]
#[template(path = "console/keys.html")]
struct KeysPage {
    head: Head,
    domains: Vec<String>,
    may_change: bool,
    form: Form,
    /// `None`: nothing was asked for yet.
    found: Option<Found>,
    /// What was done, with the command that does the same.
    done: Option<String>,
    command: Option<String>,
    failure: Option<String>,
}

/// What a person fills in.
#[derive(Default)]
struct Form {
    domain: String,
    /// Empty: all rules that match.
    rule: String,
    /// A line `NAME=VALUE` for each.
    entries: String,
    cost: String,
    action: String,
    length: String,
    reason: String,
}

/// What the rules say of a call.
struct Found {
    /// The command that lists what is held; `None` if nothing is.
    holds_command: Option<String>,
    /// Whether the call would be allowed, in words too; `None`: the store could not be asked.
    answer: Option<(bool, String)>,
    rules: Vec<RuleRow>,
    others: Vec<RuleExplanation>,
    /// Others that are not shown.
    more: usize,
}

/// A rule that matches.
struct RuleRow {
    rule: RuleExplanation,
    is_allow: bool,
    now: String,
    /// Refusals of this key lately.
    refusals: u64,
    /// The last of them, and why.
    last: Option<String>,
    /// What is held on the key, or waits for its turn.
    held: Vec<HoldBody>,
    /// Holds that are not shown.
    more_held: usize,
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = reader(&request)?;
    let form = Form::of(&Fields::of(&request));
    Ok(page::page(&KeysPage::new(&console, &caller, form).await))
}

pub(super) async fn act(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = crate::http::caller::caller(&request, Role::Admin)?;
    let from = client_address(&request);
    let form = Form::of(&console.shell.form(request).await?);
    let operator = Operator {
        caller: &caller,
        from,
    };
    let (changed, command) = (form.act(&console.shared, &operator).await, form.command());
    let form_shown = caller.check(Role::Read, None).is_ok().then_some(form);
    let mut page = KeysPage::new(&console, &caller, form_shown.unwrap_or_default()).await;
    match changed {
        Ok(text) => {
            page.done = Some(text);
            page.command = command;
        }
        Err(refusal) => page.failure = Box::<Problem>::from(refusal).detail,
    }
    Ok(page::page(&page))
}

/// The page of a key; for a key without a rule that of all keys.
pub(super) fn address(
    domain: &str,
    rule: &str,
    entries: Option<&BTreeMap<String, Option<String>>>,
) -> String {
    let entries = entries.into_iter().flatten();
    let lines = entries.filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
    let lines: Vec<String> = lines.collect();
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("domain", domain)
        .append_pair("rule", rule)
        .append_pair("entries", &lines.join("\n"))
        .finish();
    format!("{PATH}?{query}")
}

impl KeysPage {
    async fn new(console: &Console, caller: &Caller, form: Form) -> Self {
        let rules = console.shared.limiter.rules();
        let domains = rules.domains().filter(|domain| caller.reaches(domain));
        let mut page = Self {
            head: Head::of("Keys", caller),
            domains: domains.map(str::to_owned).collect(),
            may_change: caller.check(Role::Admin, None).is_ok(),
            form,
            found: None,
            done: None,
            command: None,
            failure: None,
        };
        if !page.form.domain.is_empty() {
            match Found::look_up(console, caller, &page.form).await {
                Ok(found) => page.found = Some(found),
                Err(refusal) => page.failure = Box::<Problem>::from(refusal).detail,
            }
        }
        page
    }
}

impl Form {
    fn of(fields: &Fields) -> Self {
        let field = |name| fields.word(name).to_owned();
        Self {
            domain: field("domain"),
            rule: field("rule"),
            entries: field("entries"),
            cost: field("cost"),
            action: field("action"),
            length: field("for"),
            reason: field("reason"),
        }
    }

    /// The entries as JSON.
    fn entries(&self) -> Result<Map<String, Value>, reply::Refusal> {
        let mut entries = Map::new();
        for line in self.lines() {
            let Some((name, value)) = line.split_once('=').filter(|(name, _)| !name.is_empty())
            else {
                let reason =
                    format!("`{line}` is not an entry: write NAME=VALUE, such as path=/login");
                return Err(reply::invalid(reason).into());
            };
            if entries.insert(name.to_owned(), value.into()).is_some() {
                let reason = format!("the entry `{name}` appears twice: write each name once");
                return Err(reply::invalid(reason).into());
            }
        }
        Ok(entries)
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        let lines = self.entries.lines().map(str::trim);
        lines.filter(|line| !line.is_empty())
    }

    /// The query as a body of `/v1/peek`.
    fn query(&self) -> Result<Vec<u8>, reply::Refusal> {
        let mut body = json!({ "domain": self.domain, "entries": self.entries()? });
        if !self.cost.is_empty() {
            let cost: u64 = self.cost.parse().map_err(|_| {
                let reason = format!("`{}` is not a cost: write a whole number from 1", self.cost);
                reply::invalid(reason)
            })?;
            body["cost"] = cost.into();
        }
        Ok(body.to_string().into_bytes())
    }

    /// The key as a body of `/v1/bans`.
    fn key(&self) -> Result<Vec<u8>, reply::Refusal> {
        let mut body = json!({
            "domain": self.domain, "entries": self.entries()?, "rule": self.rule, "reason": self.reason,
        });
        if self.action == "ban" {
            body["for"] = self.length.as_str().into();
        }
        // What is left empty is not said.
        if let Some(fields) = body.as_object_mut() {
            fields.retain(|name, value| name == "domain" || value != "");
        }
        Ok(body.to_string().into_bytes())
    }

    /// Does what the form asks for, as `/v1/bans` and `/v1/keys` do. Returns what was done.
    async fn act(
        &self,
        shared: &Shared,
        operator: &Operator<'_>,
    ) -> Result<String, reply::Refusal> {
        let (action, what): (ReadAction, _) = match &*self.action {
            "ban" => (admin::banning, "Banned"),
            "lift" => (admin::lifting, "Bans lifted"),
            "forgive" => (admin::forgiving, "Forgiven"),
            _ => return Err(reply::invalid("write ban, lift or forgive".to_owned()).into()),
        };
        let changed = admin::change(shared, operator, &self.key()?, action).await?;
        let keys = if changed == 1 { "key" } else { "keys" };
        Ok(format!("{what}: {changed} {keys}."))
    }

    /// The command that does the same.
    fn command(&self) -> Option<String> {
        let command = match &*self.action {
            "ban" => "quell bans set",
            "lift" => "quell bans lift",
            "forgive" => "quell bans forgive",
            _ => return None,
        };
        let mut words = self.command_of_key(command, &self.rule);
        if self.action == "ban" {
            add_flag(&mut words, "--for", &self.length);
        }
        if !self.reason.is_empty() {
            add_flag(&mut words, "--reason", &self.reason);
        }
        Some(words)
    }

    /// A command about the key of these entries, of all rules if `rule` is empty.
    fn command_of_key(&self, command: &str, rule: &str) -> String {
        let mut words = command.to_owned();
        add_flag(&mut words, "--domain", &self.domain);
        if !rule.is_empty() {
            add_flag(&mut words, "--rule", rule);
        }
        for line in self.lines() {
            add_flag(&mut words, "-e", line);
        }
        words
    }
}

fn add_flag(words: &mut String, flag: &str, value: &str) {
    // A text in memory takes everything.
    let _ = write!(words, " {flag} {}", quoted(value));
}

impl Found {
    async fn look_up(
        console: &Console,
        caller: &Caller,
        form: &Form,
    ) -> Result<Self, reply::Refusal> {
        let (shared, body) = (&console.shared, form.query()?);
        let query = http::parse_query(&body)?;
        caller.check(Role::Read, Some(query.domain()))?;
        let peeked = shared.limiter.peek(&query).await;
        let verdict = match peeked {
            Ok(verdict) => Some(verdict),
            Err(quell::AskError::Store(_)) => None,
            Err(error) => return Err(shared.ask_problem(&error, query.domain(), caller).into()),
        };
        let domain = query.domain();
        let held = match query.descriptors().first() {
            Some(entries) => shared.limiter.holds(domain, None, entries).await.ok(),
            None => None,
        };
        let held = HoldList::new(held.unwrap_or_default(), domain, caller);
        let command = form.command_of_key("quell holds", "");
        // A domain may have many rules.
        let shared = Arc::clone(shared);
        let work = move || {
            let query = http::parse_query(&body).ok()?;
            let mut found = Self::explain(&shared, &query, verdict.as_ref());
            found.add_held(held, command);
            Some(found)
        };
        let found = console.shell.work(work).await?;
        found.ok_or_else(|| reply::invalid("these entries are no query".to_owned()).into())
    }

    /// How the rules apply to a query that was answered by `verdict`.
    fn explain(shared: &Shared, query: &Query<'_>, verdict: Option<&Verdict>) -> Self {
        let (refused, _) = shared.top.list(shared.limiter.now().monotonic);
        let mut rows = Vec::new();
        let mut others = Vec::new();
        for rule in explanations(shared, query) {
            match rule.applies {
                true => rows.push(RuleRow::new(shared, rule, query, (verdict, &refused))),
                false => others.push(rule),
            }
        }
        let more = others.len().saturating_sub(MOST_OTHERS);
        others.truncate(MOST_OTHERS);
        Self {
            holds_command: None,
            answer: verdict.map(answer),
            rules: rows,
            others,
            more,
        }
    }

    /// Adds what is held, which `command` lists as well.
    fn add_held(&mut self, held: HoldList, command: String) {
        for key in held.keys.into_iter().filter(|key| !key.holds.is_empty()) {
            let rule = self
                .rules
                .iter_mut()
                .find(|row| *row.rule.rule == *key.rule);
            if let Some(row) = rule {
                row.held = key.holds;
                row.more_held = key.more;
                self.holds_command = Some(command.clone());
            }
        }
    }
}

/// How each rule of the domain applies to the only descriptor of a query.
fn explanations(shared: &Shared, query: &Query<'_>) -> Vec<RuleExplanation> {
    let in_force = shared.limiter.rules();
    let rules = in_force.domain(query.domain()).iter();
    let rules = rules.map(|active| active.rule().clone()).collect();
    let domain = DomainRules::new(query.domain(), rules);
    let explanation = explain(&[domain], query);
    let descriptors = explanation.descriptors.into_iter();
    descriptors
        .flat_map(|descriptor| descriptor.rules)
        .collect()
}

/// What the call would be answered.
fn answer(verdict: &Verdict) -> (bool, String) {
    let binding = verdict.binding.and_then(|at| verdict.decisions.get(at));
    let rule = binding.map_or_else(String::new, |decided| format!(" by {}", decided.rule));
    let mut text = match (verdict.retry_after, verdict.remaining) {
        (Some(RetryAfter::After(wait)), _) => format!("denied{rule}, for {}", words(wait)),
        (Some(RetryAfter::Never), _) => format!("denied{rule}: it can never pass"),
        (None, Some(remaining)) => format!("allowed; {remaining} remain{rule}"),
        (None, None) => "allowed: no rule limits it".to_owned(),
    };
    if verdict.degraded {
        text += " (degraded: the store did not answer)";
    }
    (verdict.is_allow(), text)
}

impl RuleRow {
    fn new(
        shared: &Shared,
        rule: RuleExplanation,
        query: &Query<'_>,
        (verdict, refused): (Option<&Verdict>, &[Refused]),
    ) -> Self {
        let decisions = verdict.map_or(&[][..], |verdict| &verdict.decisions);
        let decided = decisions.iter().find(|decided| *decided.rule == *rule.rule);
        let of_permits = has_permits(shared, query.domain(), &rule.rule);
        let now = decided.map(|decided| said(&decided.decision, of_permits));
        let descriptor = query.descriptors().first();
        let key = descriptor.and_then(|of| {
            let domain = query.domain();
            let keys = shared
                .limiter
                .keys_to_administer(domain, Some(&rule.rule), of);
            keys.ok()?.into_iter().next()
        });
        let hash = key.map(|key| shared.top.hash(&key));
        let of_key = refused.iter().find(|refused| Some(refused.hash) == hash);
        let last = of_key.and_then(|refused| refused.last);
        Self {
            is_allow: decided.is_none_or(|decided| decided.decision.outcome.is_allow()),
            now: now.unwrap_or_else(|| "no limit".to_owned()),
            refusals: of_key.map_or(0, |refused| refused.at_most),
            last: last.map(|last| told(&last, shared)),
            held: Vec::new(),
            more_held: 0,
            rule,
        }
    }
}

/// Whether a rule's calls hold permits.
fn has_permits(shared: &Shared, domain: &str, rule: &str) -> bool {
    let in_force = shared.limiter.rules();
    let mut rules = in_force.domain(domain).iter().map(ActiveRule::rule);
    let rule = rules.find(|other| *other.name == *rule);
    rule.is_some_and(|rule| {
        let overrides = rule.overrides.iter().map(|entry| &entry.effect);
        let mut effects = overrides.chain([&rule.effect]);
        effects.any(|effect| matches!(effect, Effect::Limit(limit) if limit.lease().is_some()))
    })
}

/// What a rule answers now, and of permits how many are held.
fn said(decision: &Decision, of_permits: bool) -> String {
    let banned = if decision.banned { ", banned" } else { "" };
    let answer = match decision.outcome {
        Outcome::Allow => format!("{} of {} remain", decision.remaining, decision.limit),
        Outcome::Deny(RetryAfter::After(wait)) => format!("denies for {}{banned}", words(wait)),
        Outcome::Deny(RetryAfter::Never) => "always denies this cost".to_owned(),
    };
    if !of_permits {
        return answer;
    }
    let held = decision.limit.saturating_sub(decision.remaining);
    format!("{held} of {} permits are held; {answer}", decision.limit)
}

/// When and why a call was refused.
fn told(last: &Refusal, shared: &Shared) -> String {
    let ago = words(shared.limiter.now().monotonic.since(last.at));
    let why = match last.why {
        Why::Used => "its limit was used up",
        Why::Cost => "no key may have so much at once",
        Why::Banned => "it was banned",
        Why::Degraded => "no store or coordinator answered",
    };
    format!("{ago} ago, at cost {}: {why}", last.cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_the_command_that_does_the_same() {
        let form = |text: &str| Form::of(&Fields::parse(text.as_bytes()));
        let ban = form(
            "domain=shop&rule=log+in&entries=user%3Deve%27s%0D%0A%0Apath%3D%2Flogin&for=10m&action=ban&reason=tries+all",
        );
        assert_eq!(
            ban.command().unwrap(),
            r"quell bans set --domain shop --rule 'log in' -e 'user=eve'\''s' -e path=/login --for 10m --reason 'tries all'"
        );
        let body: Value = serde_json::from_slice(&ban.key().unwrap()).unwrap();
        assert_eq!(body["entries"]["user"], "eve's");
        assert_eq!(
            (&body["for"], &body["rule"]),
            (&"10m".into(), &"log in".into())
        );
        assert_eq!(
            ban.command_of_key("quell holds", ""),
            r"quell holds --domain shop -e 'user=eve'\''s' -e path=/login"
        );
        let forgive = form("domain=shop&entries=user%3Deve&action=forgive&for=10m");
        assert_eq!(
            forgive.command().unwrap(),
            "quell bans forgive --domain shop -e user=eve"
        );
        for wrong in [
            "entries=user",
            "entries=%3Dx",
            "entries=a%3D1%0Aa%3D2",
            "cost=-1",
        ] {
            assert!(form(wrong).query().is_err(), "{wrong}");
        }
    }
}
