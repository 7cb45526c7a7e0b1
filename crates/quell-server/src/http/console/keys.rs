//! Keys: which rules a call matches and what they answer now, without charging it; forgiving, banning, and
//! lifting bans.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use quell::{AskError, Verdict};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::descriptor::Query;
use quell_core::key::printable;
use quell_core::rule::{ActiveRule, DomainRules, Rule};
use quell_protocol::http::{self, HeldKeyBody, HoldBody, Problem};
use quell_rules::{RuleExplanation, explain};
use serde_json::{Value, json};

use super::Console;
use super::overview::words;
use super::page::{CallForm, Fields, PageResult, Viewer, or_why};
use crate::access::Role;
use crate::http::admin::{self, Operator, ReadAction};
use crate::http::caller::address as client_address;
use crate::http::hold_list::{held_key, shows_ids};
use crate::http::reply;
use crate::shared::Shared;
use crate::top::{LastRefusal, RefusalReason, Refused};

use quell_host::console::key_table::KEYS_PATH as PATH;

/// Rules that do not match and are shown all the same, with the reason.
const MAX_OTHERS: usize = 50;

#[derive(Template)]
#[template(path = "console/keys.html")]
struct KeysPage<'a> {
    viewer: &'a Viewer,
    call: CallForm<'a>,
    form: &'a KeyForm,
    /// `None`: nothing was asked for yet, or it was wrong.
    found: Option<RulesAnswer>,
    /// The reason that was written, unless it was done.
    reason: &'a str,
}

/// Fields that a person fills in: `domain`, `entries` and `cost` of a call; `rule`, unless all that match
/// are meant; and the change of the key: `action`, `for`, `reason`.
#[derive(Default)]
struct KeyForm(Fields);

/// Rules' answer to a call.
#[derive(Default)]
struct RulesAnswer {
    /// The command that lists what is held; `None` if nothing is.
    holds_command: Option<String>,
    /// Answer to the call, in words too; `None`: the store could not be asked.
    answer: Option<(bool, String)>,
    /// Reason why the rule of a key that was asked for does not match its entries: they are no whole call.
    only_key: Option<String>,
    rules: Vec<RuleRow>,
    others: Vec<RuleExplanation>,
    /// Others that are not shown.
    more: usize,
}

/// A rule that matches, or whose key was asked for.
struct RuleRow {
    rule: RuleExplanation,
    is_allow: bool,
    now: String,
    /// Refusals of this key lately, by this server, which records those of the keys that are refused most.
    refusals: String,
    /// The last of them, and why.
    last: Option<String>,
    /// Holds on the key, and callers that wait for their turn.
    held: Vec<HoldBody>,
    /// Holds that are not shown.
    more_held: usize,
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.viewer(&request, &[Role::Read])?;
    let form = KeyForm(Fields::new(&request));
    shown(&console, &viewer, form, Ok(None)).await
}

pub(super) async fn act(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.viewer(&request, &[Role::Admin])?;
    let from = client_address(&request);
    let form = KeyForm(console.shell.form(request).await?);
    let operator = Operator {
        caller: &viewer.caller,
        from,
    };
    let done = form.act(&console.shared, &operator).await;
    let done = done.map(|done| Some((done, form.command()? + &viewer.url)));
    let may_read = viewer.caller.check(Role::Read, None).is_ok();
    let form = if may_read { form } else { KeyForm::default() };
    shown(&console, &viewer, form, done).await
}

async fn shown(
    console: &Console,
    viewer: &Viewer,
    form: KeyForm,
    done: Result<Option<(String, String)>, reply::Refusal>,
) -> PageResult {
    let rules = console.shared.limiter.rules();
    let domains = rules.domains();
    let domains = domains.filter(|domain| viewer.caller.reaches(domain));
    let domains: Vec<String> = domains.map(str::to_owned).collect();
    let found = match form.get("domain") {
        "" => Ok(None),
        _ => RulesAnswer::look_up(console, viewer, &form).await.map(Some),
    };
    let why = |refusal| Box::<Problem>::from(refusal).detail.unwrap_or_default();
    let (found, unknown) = or_why(found.map_err(why));
    let done = match done.map_err(why) {
        Ok(None) => unknown,
        done => done,
    };
    let page = KeysPage {
        viewer,
        call: CallForm {
            action: PATH,
            button: "Look up",
            domains: &domains,
            asked: &form.0,
        },
        form: &form,
        found: found.flatten(),
        reason: done.as_ref().map_or_else(|_| form.get("reason"), |_| ""),
    };
    console.shell.answer("Keys", viewer, &done, &page)
}

impl KeysPage<'_> {
    /// The rules that a change can be about.
    fn rules(&self) -> Vec<&str> {
        let Some(found) = &self.found else {
            let asked = Some(self.form.get("rule"));
            return asked.into_iter().filter(|rule| !rule.is_empty()).collect();
        };
        let rows = found.rules.iter().map(|row| &row.rule);
        let rules = rows.chain(&found.others).map(|rule| &*rule.rule);
        rules.collect()
    }
}

impl KeyForm {
    fn get(&self, name: &str) -> &str {
        self.0.word(name)
    }

    /// The entries as JSON.
    fn entries(&self) -> Result<Value, Box<Problem>> {
        self.0
            .entries()
            .map(Value::from_iter)
            .map_err(reply::invalid)
    }

    /// The query as a body of `/v1/peek`.
    fn query(&self) -> Result<Vec<u8>, Box<Problem>> {
        let mut body = json!({ "domain": self.get("domain"), "entries": self.entries()? });
        let cost = self.get("cost");
        if !cost.is_empty() {
            let wrong = |_| {
                reply::invalid(format!(
                    "`{cost}` is not a cost: write a whole number from 1"
                ))
            };
            body["cost"] = cost.parse::<u64>().map_err(wrong)?.into();
        }
        Ok(body.to_string().into_bytes())
    }

    /// The key as a body of `/v1/bans`.
    fn key(&self) -> Result<Vec<u8>, Box<Problem>> {
        let mut body = json!({
            "domain": self.get("domain"), "entries": self.entries()?, "rule": self.get("rule"),
            "reason": self.get("reason"),
        });
        if self.get("action") == "ban" {
            body["for"] = self.get("for").into();
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
        let (action, what): (ReadAction, _) = match self.get("action") {
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
        let (command, length) = match self.get("action") {
            "ban" => ("quell bans set", self.get("for")),
            "lift" => ("quell bans lift", ""),
            "forgive" => ("quell bans forgive", ""),
            _ => return None,
        };
        let more = [("--for", length), ("--reason", self.get("reason"))];
        Some(self.0.command(command, self.get("rule"), &more))
    }
}

impl RulesAnswer {
    async fn look_up(
        console: &Console,
        viewer: &Viewer,
        form: &KeyForm,
    ) -> Result<Self, reply::Refusal> {
        let (shared, caller, body) = (&console.shared, &viewer.caller, form.query()?);
        let query = http::parse_query(&body)?;
        let domain = query.domain();
        caller.check(Role::Read, Some(domain))?;
        let rule = Some(form.get("rule")).filter(|rule| !rule.is_empty());
        let entries = query.descriptors().first().cloned().unwrap_or_default();
        let known = |verdict: Result<Verdict, AskError>| match verdict {
            Ok(verdict) => Ok(Some(verdict)),
            Err(AskError::Store(_)) => Ok(None),
            Err(error @ AskError::NoKey { .. }) => Err(reply::invalid(error.to_string())),
            Err(error) => Err(shared.ask_problem(&error, domain, caller)),
        };
        let verdict = known(shared.limiter.peek(&query).await)?;
        let key = match rule {
            Some(rule) => known(shared.limiter.peek_key(domain, rule, &entries).await)?,
            None => None,
        };
        let held = shared.limiter.view(domain, rule, &entries).await;
        let has_ids = shows_ids(domain, caller);
        let held = held.unwrap_or_default().into_iter().map(|(key, mut view)| {
            let ban_reason = view.ban_reason.take();
            (held_key(key, view, has_ids), ban_reason)
        });
        let held: Vec<_> = held.collect();
        let command = form.0.command("quell holds", form.get("rule"), &[]) + &viewer.url;
        // A domain may have many rules.
        let (shared, rule) = (Arc::clone(shared), rule.map(str::to_owned));
        let work = move || {
            let query = http::parse_query(&body).ok()?;
            let mut found = Self::explain(&shared, &query, verdict.as_ref(), rule.zip(key));
            found.add_held(held, command);
            Some(found)
        };
        let found = console.shell.work(work).await?;
        found.ok_or_else(|| reply::invalid("these entries are not a valid query".to_owned()).into())
    }

    /// Application of the rules to a query that was answered by `verdict`, and the answer of the rule's key
    /// that was asked for.
    fn explain(
        shared: &Shared,
        query: &Query<'_>,
        verdict: Option<&Verdict>,
        key: Option<(String, Verdict)>,
    ) -> Self {
        let (refused, _) = shared.top.list(shared.limiter.now().monotonic);
        let mut found = Self {
            answer: verdict.map(answer),
            ..Self::default()
        };
        for mut rule in explanations(shared, query, None) {
            let of_key = key.as_ref().filter(|(name, _)| *name == rule.rule);
            if let Some((name, _)) = of_key.filter(|_| !rule.applies) {
                found.only_key = rule.why_not.take();
                rule = explanations(shared, query, Some(name))
                    .pop()
                    .unwrap_or(rule);
            }
            let verdict = of_key.map_or(verdict, |(_, verdict)| Some(verdict));
            match rule.applies || of_key.is_some() {
                true => found
                    .rules
                    .push(RuleRow::new(shared, rule, query, (verdict, &refused))),
                false => found.others.push(rule),
            }
        }
        found.more = found.others.len().saturating_sub(MAX_OTHERS);
        found.others.truncate(MAX_OTHERS);
        found
    }

    /// Adds why keys are banned, and what is held, which `command` lists as well.
    fn add_held(&mut self, held: Vec<(HeldKeyBody, Option<Box<str>>)>, command: String) {
        let has_some = held.iter().any(|(key, _)| !key.holds.is_empty());
        self.holds_command = has_some.then_some(command);
        for (key, ban_reason) in held {
            let mut rows = self.rules.iter_mut();
            if let Some(row) = rows.find(|row| *row.rule.rule == *key.rule) {
                row.now += &why_banned(&row.now, ban_reason.as_deref());
                row.held = key.holds;
                row.more_held = key.more;
            }
        }
    }
}

/// Sentence to follow `now`, which says whether the key is banned, unless it has been since.
fn why_banned(now: &str, reason: Option<&str>) -> String {
    let Some(reason) = reason else {
        return String::new();
    };
    let since = if now.ends_with("banned") {
        ""
    } else {
        "; banned"
    };
    format!("{since}: {}", printable(reason))
}

/// Application of each rule of the domain to the only descriptor of a query; or of one rule whatever it
/// matches.
fn explanations(shared: &Shared, query: &Query<'_>, only: Option<&str>) -> Vec<RuleExplanation> {
    let in_force = shared.limiter.rules();
    let rules = in_force.domain(query.domain()).iter().map(ActiveRule::rule);
    let rules = rules.filter(|rule| only.is_none_or(|only| *rule.name == *only));
    let mut rules: Vec<Rule> = rules.cloned().collect();
    if only.is_some() {
        rules.iter_mut().for_each(|rule| rule.matchers.clear());
    }
    let domain = DomainRules::new(query.domain(), rules);
    let explanation = explain(&[domain], query);
    let descriptors = explanation.descriptors.into_iter();
    descriptors
        .flat_map(|descriptor| descriptor.rules)
        .collect()
}

/// Answer that the call would get.
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
        let of_permits = rule.algorithm.as_deref() == Some("concurrency");
        let now = decided.map(|decided| decision_text(&decided.decision, of_permits));
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
            refusals: of_key.map_or("none on record".to_owned(), |of| of.at_most.to_string()),
            last: last.map(|last| refusal_text(&last, shared)),
            held: Vec::new(),
            more_held: 0,
            rule,
        }
    }
}

/// Current answer of a rule, and of permits the number that is held.
fn decision_text(decision: &Decision, of_permits: bool) -> String {
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

/// Time and reason of a call's refusal.
fn refusal_text(last: &LastRefusal, shared: &Shared) -> String {
    let ago = words(shared.limiter.now().monotonic.since(last.at));
    let why = match last.why {
        RefusalReason::Used => "its limit was used up",
        RefusalReason::Cost => "no key may have so much at once",
        RefusalReason::Banned => "it was banned",
        RefusalReason::Degraded => "no store or coordinator answered",
    };
    format!("{ago} ago, at cost {}: {why}", last.cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_the_command_that_does_the_same() {
        let form = |text: &str| KeyForm(Fields::parse(text.as_bytes()));
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
            ban.0.command("quell holds", "", &[]),
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
