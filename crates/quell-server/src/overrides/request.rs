//! Request: an override as callers write it, flat, with its numbers and its times side by side.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use quell::override_store::{Prorated, StoredNumbers};
use quell_core::time::Wall;
use quell_rules::{is_no_year_of_instants, parse_duration};
use serde_json::{Map, Value};

use super::ChangeMode;

/// One of the two overrides that a key can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhichOverride {
    /// That with an end.
    Boost,
    /// That without one.
    Standing,
}

impl WhichOverride {
    /// The word of it.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        match word {
            "boost" => Ok(Self::Boost),
            "standing" => Ok(Self::Standing),
            _ => Err(
                "write boost for the override that has an `until`, or standing for the other"
                    .to_owned(),
            ),
        }
    }

    pub(crate) const fn has_end(self) -> bool {
        matches!(self, Self::Boost)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Boost => "boost",
            Self::Standing => "standing",
        }
    }
}

/// Members that may stand beside `plan`.
const CALENDAR: [&str; 2] = ["anchor", "time_zone"];

/// An override that somebody writes, without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverrideRequest {
    pub(crate) numbers: StoredNumbers,
    pub(crate) from: Option<Wall>,
    pub(crate) until: Option<Wall>,
    pub(crate) mode: ChangeMode,
    pub(crate) prorated: Option<Prorated>,
    pub(crate) reason: Arc<str>,
}

/// Mistake in a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberMistake {
    /// The member; empty if one is missing.
    pub(crate) member: &'static str,
    /// The mistake, and what to write.
    pub(crate) reason: String,
}

impl MemberMistake {
    pub(crate) fn new(member: &'static str, reason: impl Into<String>) -> Self {
        Self {
            member,
            reason: reason.into(),
        }
    }
}

impl OverrideRequest {
    /// Reads the members of an object, of which those that are no times are numbers. Whether the numbers go with a rule
    /// is not checked.
    pub(crate) fn read(mut members: Map<String, Value>, now: Wall) -> Result<Self, MemberMistake> {
        let from = instant(&mut members, "from", now)?;
        let until = instant(&mut members, "until", now)?;
        let mode = match take_text(&mut members, "change")? {
            None => ChangeMode::default(),
            Some(word) => change_mode(&word)?,
        };
        let prorated = match members.remove("prorated") {
            None | Some(Value::Null) => None,
            Some(prorated) => Some(read_prorated(prorated, now)?),
        };
        let reason = take_text(&mut members, "reason")?.unwrap_or_default();
        Ok(Self {
            numbers: read_numbers(&mut members)?,
            from,
            until,
            mode,
            prorated,
            reason: reason.into(),
        })
    }
}

fn change_mode(word: &str) -> Result<ChangeMode, MemberMistake> {
    let mut modes = ChangeMode::WORDS.into_iter();
    let mode = modes.find(|(known, _)| *known == word);
    mode.map(|(_, mode)| mode).ok_or_else(|| {
        let reason = "write keep, prorate or restart";
        MemberMistake::new("change", reason)
    })
}

fn read_numbers(members: &mut Map<String, Value>) -> Result<StoredNumbers, MemberMistake> {
    const NUMBERS: &str = "the numbers are missing: write the fields of a limit such as \"rate\": \"200/s\", or \
                           \"plan\": \"gold\", \"unlimited\": true or \"refuse\": true";
    if let Some(plan) = take_text(members, "plan")? {
        let names = members.keys().map(|name| &**name);
        let others: Vec<&str> = names.filter(|name| !CALENDAR.contains(name)).collect();
        if !others.is_empty() {
            let reason = format!(
                "a plan says all numbers but where windows begin: leave {} out, or write the numbers of the plan beside \
                 it in place of `plan`",
                others.join(", ")
            );
            return Err(MemberMistake::new("plan", reason));
        }
        members.retain(|_, value| !value.is_null());
        return match read_fields(members)? {
            StoredNumbers::Fields(calendar) if &*calendar != "{}" => Ok(StoredNumbers::PlanFrom {
                plan: plan.into(),
                calendar,
            }),
            _ => Ok(StoredNumbers::Plan(plan.into())),
        };
    }
    let is_alone = |name: &str| members.len() == 1 && members.get(name) == Some(&Value::Bool(true));
    if is_alone("unlimited") {
        return Ok(StoredNumbers::Unlimited);
    }
    if is_alone("refuse") {
        return Ok(StoredNumbers::Refuse);
    }
    if members.is_empty() {
        return Err(MemberMistake::new("", NUMBERS));
    }
    read_fields(members)
}

fn read_fields(members: &mut Map<String, Value>) -> Result<StoredNumbers, MemberMistake> {
    let text = Value::Object(std::mem::take(members)).to_string();
    StoredNumbers::fields(&text).map_err(|error| MemberMistake::new("", error.to_string()))
}

fn read_prorated(prorated: Value, now: Wall) -> Result<Prorated, MemberMistake> {
    let wrong = || {
        let reason = "write it as it was listed, or leave it out";
        MemberMistake::new("prorated", reason)
    };
    let Value::Object(mut members) = prorated else {
        return Err(wrong());
    };
    let limit = members.remove("limit");
    let limit = limit.and_then(|limit| limit.as_u64()).ok_or_else(wrong)?;
    let until = instant(&mut members, "until", now)?.ok_or_else(wrong)?;
    Ok(Prorated { limit, until })
}

/// Takes a text out of an object, if it is there.
pub(crate) fn take_text(
    members: &mut Map<String, Value>,
    name: &'static str,
) -> Result<Option<String>, MemberMistake> {
    match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => {
            let reason = format!("{other} is no text: write it in quotes");
            Err(MemberMistake::new(name, reason))
        }
    }
}

/// Takes an instant out of an object, if it is there: RFC 3339, or a duration from now.
fn instant(
    members: &mut Map<String, Value>,
    name: &'static str,
    now: Wall,
) -> Result<Option<Wall>, MemberMistake> {
    let Some(text) = take_text(members, name)? else {
        return Ok(None);
    };
    let read = match text.parse::<Timestamp>() {
        Ok(instant) => u64::try_from(instant.as_nanosecond())
            .ok()
            .map(Wall::from_nanos),
        Err(_) => match parse_duration(&text) {
            Ok(Duration::ZERO) | Err(_) => None,
            Ok(duration) => Some(now.saturating_add(duration)),
        },
    };
    read.map(Some).ok_or_else(|| {
        let reason = if is_no_year_of_instants(&text) {
            format!("{text:?} is not between 1970 and 2554: leave `{name}` out for always")
        } else {
            format!(
                "{text:?} is no instant: write one such as 2026-12-24T18:00:00Z, or a duration from now such as 2h"
            )
        };
        MemberMistake::new(name, reason)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// 1970-01-02T00:00:00Z.
    const NOW: Wall = Wall::from_nanos(86_400_000_000_000);

    fn read(body: Value) -> Result<OverrideRequest, MemberMistake> {
        let Value::Object(members) = body else {
            panic!("{body}")
        };
        OverrideRequest::read(members, NOW)
    }

    #[test]
    fn numbers_and_times_stand_side_by_side() {
        let read = |body| read(body).unwrap();
        let limit = read(json!({"burst": 400, "rate": "200/s", "until": "2h", "reason": "sale"}));
        let fields = StoredNumbers::fields(r#"{"burst":400,"rate":"200/s"}"#).unwrap();
        assert_eq!(
            limit,
            OverrideRequest {
                numbers: fields,
                from: None,
                until: Some(NOW.saturating_add(Duration::from_secs(7_200))),
                mode: ChangeMode::Keep,
                prorated: None,
                reason: "sale".into(),
            }
        );
        let plan = read(json!({"plan": "gold", "from": "1970-01-01T01:00:00+01:00"}));
        assert_eq!(plan.numbers, StoredNumbers::Plan("gold".into()));
        assert_eq!(plan.from, Some(Wall::ORIGIN));
        let from = read(json!({"plan": "gold", "anchor": 17, "time_zone": "Europe/Berlin"}));
        let calendar = r#"{"anchor":17,"time_zone":"Europe/Berlin"}"#.into();
        let plan: Arc<str> = "gold".into();
        assert_eq!(from.numbers, StoredNumbers::PlanFrom { plan, calendar });
        let none = read(json!({"plan": "gold", "anchor": null}));
        assert_eq!(none.numbers, StoredNumbers::Plan("gold".into()));
        let unlimited = read(json!({"unlimited": true, "until": null})).numbers;
        assert_eq!(unlimited, StoredNumbers::Unlimited);
        let refused = read(json!({"refuse": true, "change": "restart"}));
        assert_eq!(
            (refused.numbers, refused.mode),
            (StoredNumbers::Refuse, ChangeMode::Restart)
        );
        let listed =
            json!({"limit": "9/day", "prorated": {"limit": 5, "until": "1970-01-03T00:00:00Z"}});
        let until = NOW.saturating_add(Duration::from_secs(86_400));
        assert_eq!(read(listed).prorated, Some(Prorated { limit: 5, until }));
    }

    #[test]
    fn mistakes_say_which_member_and_what_to_write() {
        for (body, member, words) in [
            (json!({}), "", "\"rate\": \"200/s\""),
            (
                json!({"plan": "gold", "rate": "1/s"}),
                "plan",
                "leave rate out",
            ),
            (json!({"plan": 7}), "plan", "in quotes"),
            (
                json!({"rate": "1/s", "until": "soon"}),
                "until",
                "such as 2h",
            ),
            (json!({"rate": "1/s", "until": "0s"}), "until", "such as 2h"),
            (
                json!({"rate": "1/s", "from": "2026-12-24"}),
                "from",
                "18:00:00Z",
            ),
            (json!({"rate": "1/s", "from": 7}), "from", "in quotes"),
            (
                json!({"rate": "1/s", "change": "reset"}),
                "change",
                "keep, prorate or restart",
            ),
            (
                json!({"rate": "1/s", "prorated": 7}),
                "prorated",
                "leave it out",
            ),
        ] {
            let mistake = read(body.clone()).unwrap_err();
            assert_eq!(mistake.member, member, "{body}");
            assert!(mistake.reason.contains(words), "{body}: {}", mistake.reason);
        }
    }
}
