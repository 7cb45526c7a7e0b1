//! Edit: changes fields of one rule, of its overrides, or of what plans say for it, in the text of a rules file. No
//! other byte changes.
//!
//! The parser knows the bytes of each value, so comments, order and layout stay. Afterwards the whole
//! text is parsed again: it must have no mistake, and only that one rule may differ.

use std::ops::Range;

use quell_core::rule::DomainRules;

use crate::hint;
use crate::load::{LoadedRules, parse_str};
use crate::problem::{Problem, Sink};
use crate::yaml::{self, Form, Node, Pair};

mod node;
mod value;

pub use value::Assignment;
use value::Place;

/// A new field is inserted after the first of these fields that the rule, the override, or the plan has.
const NEIGHBOURS: [&str; 8] = [
    "rate",
    "refill",
    "limit",
    "window",
    "algorithm",
    "name",
    "burst",
    "when",
];

/// The result of an edit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EditedRules {
    /// The new text.
    pub text: String,
    /// The rules of the old text.
    pub before: LoadedRules,
    /// The rules of the new text.
    pub after: LoadedRules,
}

/// Reason why fields cannot be set. The message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The rules have mistakes before the edit.
    #[error("the rules have mistakes already:{}", lines(.0))]
    Before(Vec<Problem>),
    /// The rules would have mistakes after the edit.
    #[error("the rule would not be sound:{}", lines(.0))]
    After(Vec<Problem>),
    /// The rule does not exist.
    #[error("no rule `{name}`{}", instead(meant.as_deref()))]
    NoRule {
        /// The name that was given.
        name: String,
        /// A rule with a similar name.
        meant: Option<String>,
    },
    /// Rules of several domains have the name.
    #[error("several domains have a rule `{name}`: say which with --domain, one of {}", domains.join(", "))]
    Ambiguous {
        /// The rule.
        name: String,
        /// The domains.
        domains: Vec<String>,
    },
    /// A field is set twice.
    #[error("`{0}` appears twice: write it once")]
    Twice(String),
    /// The `name` cannot be set: a rule with another name is another rule.
    #[error("a rule with another name is another rule, and begins afresh: {BY_HAND}")]
    Name,
    /// A count takes the place of a count per period.
    #[error("`{assignment}` has no period, and it was `{before}`: write `{assignment}/{period}`")]
    NoPeriod {
        /// The field and its new value.
        assignment: String,
        /// Its value so far.
        before: String,
        /// Its period so far.
        period: String,
    },
    /// The rule does not have that many overrides.
    #[error("`{field}`: {}", last_override(*count))]
    NoOverride {
        /// The field.
        field: String,
        /// Number of overrides of the rule.
        count: usize,
    },
    /// The field is one of another rule, of a plan that is not there, or of one that says nothing for the rule.
    #[error("`{field}`: {reason}")]
    NoPlan {
        /// The field.
        field: String,
        /// Reason, and what to write.
        reason: String,
    },
    /// The field cannot be set because of the way it is written.
    #[error("{what} is written {how}: {BY_HAND}")]
    NotHere {
        /// The field; or the rule, if no field of it can be set.
        what: String,
        /// Form in which it is written.
        how: &'static str,
    },
    /// Other rules would change as well.
    #[error("{} would change as well: {BY_HAND}", .0.join(", "))]
    Others(Vec<String>),
}

/// Advice if a field cannot be set.
const BY_HAND: &str = "pull the rules, edit them and push them";

fn lines(problems: &[Problem]) -> String {
    let lines = problems.iter().map(|problem| format!("\n  {problem}"));
    lines.collect()
}

fn instead(meant: Option<&str>) -> String {
    match meant {
        Some(meant) => format!(", did you mean `{meant}`?"),
        None => ": write the name of one that is there".to_owned(),
    }
}

fn last_override(count: usize) -> String {
    match count.checked_sub(1) {
        None => "the rule has no overrides: write all that it shall have, as in \
                 'overrides=[{when: {tenant: acme}, rate: 1000/s}]'"
            .to_owned(),
        Some(last) => format!("the last override is overrides[{last}]; to add one, {BY_HAND}"),
    }
}

/// Sets fields of the rule `rule`, of its overrides (`overrides[0].rate=1000/s`) or of what plans say for it
/// (`plans.gold.api.rate=200/s`), in `text`. Messages call the text `name`. `domain` may be `None` if only one domain
/// has a rule of that name.
///
/// ```
/// use quell_rules::set_fields;
///
/// let text = "domain: shop\nrules:\n  - name: api # ours\n    rate: 100/s # a lot\n";
/// let set = ["rate=200/s".parse()?, "burst=500".parse()?];
/// let edited = set_fields("shop.yaml", text, None, "api", &set)?;
/// assert_eq!(
///     edited.text,
///     "domain: shop\nrules:\n  - name: api # ours\n    rate: 200/s # a lot\n    burst: 500\n"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`EditError`]; for a wrong field or value, with the parser's message.
pub fn set_fields(
    name: &str,
    text: &str,
    domain: Option<&str>,
    rule: &str,
    assignments: &[Assignment],
) -> Result<EditedRules, EditError> {
    let before = parse_str(name, text).map_err(EditError::Before)?;
    let domain = find_domain(&before.domains, domain, rule)?;
    check(assignments)?;
    let has_window = assignments.iter().any(|other| other.name() == "window");
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // The text was parsed above without problems, so none are reported here.
    let roots = yaml::documents(text.as_bytes(), &mut Sink::new(name));
    let found = find_rule(&roots, domain, rule).ok_or_else(|| EditError::NotHere {
        what: format!("the rule `{rule}`"),
        how: "by way of an alias",
    })?;
    let mut edits = Vec::with_capacity(assignments.len());
    for assignment in assignments {
        let node = match assignment.place() {
            Place::Rule => found.node,
            Place::Override(index) => find_override(found.node, *index, assignment)?,
            Place::Plan(path) => find_plan(found.root, rule, path, assignment)?,
        };
        let edit = edit(text, node, assignment)?;
        if !has_window {
            check_period(text, &edit, assignment)?;
        }
        edits.push(edit);
    }
    let edited = apply(text, edits);
    let after = parse_str(name, &edited).map_err(EditError::After)?;
    let others = others(&before.domains, &after.domains, (domain, rule));
    if !others.is_empty() {
        return Err(EditError::Others(others));
    }
    Ok(EditedRules {
        text: edited,
        before,
        after,
    })
}

/// Refuses a count in place of a count per period: what else the period should be, nobody knows.
fn check_period(text: &str, edit: &Edit, assignment: &Assignment) -> Result<(), EditError> {
    let before = text.get(edit.range.clone()).unwrap_or_default();
    let period = before
        .split_once('/')
        .map(|(_, period)| period.trim_end_matches(['"', '\'']));
    let is_count = assignment
        .written()
        .bytes()
        .all(|byte| byte.is_ascii_digit());
    match period {
        Some(period) if is_count && matches!(assignment.name(), "limit" | "rate") => {
            Err(EditError::NoPeriod {
                assignment: assignment.to_string(),
                before: before.to_owned(),
                period: period.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

fn check(assignments: &[Assignment]) -> Result<(), EditError> {
    for (index, assignment) in assignments.iter().enumerate() {
        let field = assignment.field();
        let mut earlier = assignments.iter().take(index);
        if earlier.any(|earlier| earlier.field() == field) {
            return Err(EditError::Twice(field.to_owned()));
        }
        if field == "name" {
            return Err(EditError::Name);
        }
        let is_over = |other: &Assignment| matches!(other.place(), Place::Override(_));
        if field == "overrides" && assignments.iter().any(is_over) {
            return Err(EditError::Twice(field.to_owned()));
        }
    }
    Ok(())
}

/// The name of the domain that has the rule `rule`.
fn find_domain<'d>(
    domains: &'d [DomainRules],
    name: Option<&str>,
    rule: &str,
) -> Result<&'d str, EditError> {
    let candidates = || {
        let is_named = |domain: &&DomainRules| name.is_none_or(|name| *domain.domain == *name);
        domains.iter().filter(is_named)
    };
    let has_it = |domain: &&DomainRules| domain.rules.iter().any(|other| *other.name == *rule);
    let mut having = candidates().filter(has_it);
    match (having.next(), having.next()) {
        (Some(only), None) => Ok(&only.domain),
        (Some(_), Some(_)) => Err(EditError::Ambiguous {
            name: rule.to_owned(),
            domains: candidates()
                .filter(has_it)
                .map(|domain| domain.domain.to_string())
                .collect(),
        }),
        (None, _) => {
            let all = candidates().flat_map(|domain| &domain.rules);
            let names: Vec<&str> = all.map(|rule| &*rule.name).collect();
            Err(EditError::NoRule {
                name: rule.to_owned(),
                meant: hint::meant(rule, &names).map(str::to_owned),
            })
        }
    }
}

/// The YAML map of a rule, and the document that it is in.
#[derive(Clone, Copy, Debug)]
struct FoundRule<'n> {
    root: &'n Node,
    node: &'n Node,
}

fn find_rule<'n>(roots: &'n [Node], domain: &str, rule: &str) -> Option<FoundRule<'n>> {
    let is_domain = |root: &&Node| {
        let name = root.get("domain").and_then(Node::text);
        name == Some(domain)
    };
    let mut roots = roots.iter().filter(is_domain);
    roots.find_map(|root| {
        let mut rules = root.get("rules").map_or(&[][..], Node::items).iter();
        let node = rules.find(|node| node.get("name").and_then(Node::text) == Some(rule))?;
        Some(FoundRule { root, node })
    })
}

/// The YAML map of what a plan says for the rule, or an alias on the way to it. `path` is `PLAN.RULE`.
fn find_plan<'n>(
    root: &'n Node,
    rule: &str,
    path: &str,
    assignment: &Assignment,
) -> Result<&'n Node, EditError> {
    let no_plan = |reason| EditError::NoPlan {
        field: assignment.field().to_owned(),
        reason,
    };
    let plan = path
        .strip_suffix(rule)
        .and_then(|rest| rest.strip_suffix('.'));
    let plan = plan.ok_or_else(|| {
        let reason = format!("this is of another rule: of `{rule}` write plans.PLAN.{rule}.FIELD");
        no_plan(reason)
    })?;
    let plans = root.get("plans");
    if let Some(alias) = plans.filter(|plans| plans.is_alias()) {
        return Ok(alias);
    }
    let Some(node) = plans.and_then(|plans| plans.get(plan)) else {
        let pairs = plans.map_or(&[][..], Node::pairs);
        let names: Vec<&str> = pairs.iter().map(|pair| &*pair.key).collect();
        return Err(no_plan(match hint::meant(plan, &names) {
            Some(meant) => format!("there is no plan `{plan}`, did you mean `{meant}`?"),
            None => format!("there is no plan `{plan}` beside the rule: to add one, {BY_HAND}"),
        }));
    };
    match node.get(rule) {
        Some(numbers) => Ok(numbers),
        None if node.is_alias() => Ok(node),
        None => Err(no_plan(format!(
            "the plan `{plan}` says nothing for the rule: to add numbers, {BY_HAND}"
        ))),
    }
}

/// The YAML map of an override, or an alias of one.
fn find_override<'n>(
    rule: &'n Node,
    index: usize,
    assignment: &Assignment,
) -> Result<&'n Node, EditError> {
    let list = rule.get("overrides");
    if let Some(alias) = list.filter(|list| list.is_alias()) {
        return Ok(alias);
    }
    let items = list.map_or(&[][..], Node::items);
    items.get(index).ok_or_else(|| EditError::NoOverride {
        field: assignment.field().to_owned(),
        count: items.len(),
    })
}

/// An edit: `text` replaces the bytes `range`.
#[derive(Debug)]
struct Edit {
    range: Range<usize>,
    text: String,
}

fn edit(text: &str, node: &Node, assignment: &Assignment) -> Result<Edit, EditError> {
    let field = assignment.name();
    let not_here = |how| EditError::NotHere {
        what: format!("`{}`", assignment.field()),
        how,
    };
    if node.is_alias() {
        return Err(not_here("by way of an alias"));
    }
    if let Some(value) = node.get(field) {
        if !value.is_exact() {
            return Err(not_here("in lines of its own"));
        }
        return Ok(Edit {
            range: value.bytes.clone(),
            text: assignment.written().to_owned(),
        });
    }
    let neighbour = neighbour(node.pairs()).ok_or_else(|| not_here("nowhere yet"))?;
    let end = neighbour.node.bytes.end;
    let pair = format!("{field}: {}", assignment.written());
    if node.form == Form::Inline {
        return Ok(Edit {
            range: end..end,
            text: format!(", {pair}"),
        });
    }
    // On a line of its own, after a comment that may follow the neighbour's value.
    let rest = text.get(end..).unwrap_or_default();
    let line = rest.find('\n').map_or(rest, |length| &rest[..length]);
    let newline = if line.ends_with('\r') { "\r\n" } else { "\n" };
    let end = end + line.trim_end_matches('\r').len();
    let indent = " ".repeat(neighbour.key_at.column.saturating_sub(1));
    Ok(Edit {
        range: end..end,
        text: format!("{newline}{indent}{pair}"),
    })
}

/// The pair after which a new one is inserted.
fn neighbour(pairs: &[Pair]) -> Option<&Pair> {
    let find = |name: &&str| {
        let is_it = |pair: &&Pair| *pair.key == **name && pair.node.is_exact();
        pairs.iter().find(is_it)
    };
    NEIGHBOURS.iter().find_map(find)
}

fn apply(text: &str, mut edits: Vec<Edit>) -> String {
    // The sort is stable: edits at one place stay in the order of the assignments.
    edits.sort_by_key(|edit| edit.range.start);
    let mut edited = String::with_capacity(text.len() + 64);
    let mut done = 0;
    for edit in &edits {
        edited.push_str(text.get(done..edit.range.start).unwrap_or_default());
        edited.push_str(&edit.text);
        done = edit.range.end;
    }
    edited.push_str(text.get(done..).unwrap_or_default());
    edited
}

/// Rules other than `this` that changed.
fn others(before: &[DomainRules], after: &[DomainRules], this: (&str, &str)) -> Vec<String> {
    let changes = crate::RuleChanges::between_domains(before, after);
    let changed = changes.rules().iter();
    let other = changed.filter(|change| (&*change.domain, &*change.rule) != this);
    let mut names: Vec<String> = other
        .map(|change| format!("{}/{}", change.domain, change.rule))
        .collect();
    let order = |domains: &[DomainRules]| -> Vec<(String, Vec<String>)> {
        let names = |domain: &DomainRules| {
            let rules = domain.rules.iter().map(|rule| rule.name.to_string());
            (domain.domain.to_string(), rules.collect())
        };
        domains.iter().map(names).collect()
    };
    if names.is_empty() && order(before) != order(after) {
        names.push("the order of the rules".to_owned());
    }
    names
}
