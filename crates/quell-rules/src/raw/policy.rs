//! Policy, as written: a rung, the answer on failure, and the number of nodes.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use quell_core::fleet_share::FleetSize;
use quell_core::over_admission::OverAdmission;

use crate::cursor::Fields;
use crate::decimal::Decimal;
use crate::path::Spanned;
use crate::period::whole;
use crate::problem::Sink;
use crate::{duration, hint};

/// The most nodes that a limit is divided by: no store is shared by more servers.
const MAX_NODES: u32 = 100_000;

/// The fields that say where a rule is decided, and what happens on failure.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawPolicy {
    pub(crate) rung: Option<Spanned<RungName>>,
    pub(crate) over: Option<Spanned<OverAdmission>>,
    pub(crate) latency: Option<Spanned<Duration>>,
    pub(crate) on_failure: Option<Spanned<&'static str>>,
    pub(crate) nodes: Option<Spanned<NonZeroU32>>,
    pub(crate) cluster_size: Option<Spanned<FleetSize>>,
    pub(crate) group: Option<Spanned<Arc<str>>>,
}

impl RawPolicy {
    pub(super) fn read(fields: &Fields<'_>, sink: &mut Sink) -> Self {
        Self {
            rung: fields.read("rung", sink, rung),
            over: fields.read("max_over_admission", sink, over),
            latency: fields.read("latency_budget", sink, duration::parse),
            on_failure: fields.read("on_failure", sink, word),
            nodes: fields.read("nodes", sink, nodes),
            cluster_size: fields.read("cluster_size", sink, cluster_size),
            group: fields.read("group", sink, group),
        }
    }
}

/// A rung by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RungName {
    Strict,
    Local,
    Leased,
    Synced,
    Shares,
}

fn rung(text: &str) -> Result<RungName, String> {
    match text {
        "strict" => Ok(RungName::Strict),
        "local" => Ok(RungName::Local),
        "leased" => Ok(RungName::Leased),
        "shares" => Ok(RungName::Shares),
        "synced" => Ok(RungName::Synced),
        _ => {
            let names = &["strict", "leased", "synced", "shares", "local"];
            Err(hint::no_such("value", text, names))
        }
    }
}

/// A number of units, or a percentage.
fn over(text: &str) -> Result<OverAdmission, String> {
    const EXAMPLE: &str = "write 0, a number of units such as 500, or a percentage such as 1%";
    let shown = hint::shorten(text);
    let Some(percent) = text.strip_suffix('%') else {
        let units = whole(text).map_err(|_| format!("`{shown}` is not a bound: {EXAMPLE}"))?;
        return Ok(OverAdmission::Units(units));
    };
    let percent = Decimal::parse(percent.trim_end());
    let millionths = percent.and_then(|percent| percent.times(10_000));
    let millionths = millionths.and_then(|part| u32::try_from(part).ok());
    match millionths {
        Some(part) if part <= 1_000_000 => Ok(OverAdmission::Millionths(part)),
        _ => Err(format!(
            "`{shown}` is not a percentage from 0.0001% to 100%: {EXAMPLE}"
        )),
    }
}

fn word(text: &str) -> Result<&'static str, String> {
    hint::one_of(
        "value",
        text,
        &["share", "deny", "allow", "floor"].map(|word| (word, word)),
    )
}

/// The most nodes of a fleet.
const MAX_MEMBERS: u32 = 10_000;

fn cluster_size(text: &str) -> Result<FleetSize, String> {
    if text == "auto" {
        return Ok(FleetSize::Auto);
    }
    let number = whole(text)
        .ok()
        .and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| *number <= MAX_MEMBERS);
    let nodes = number.and_then(NonZeroU32::new).ok_or_else(|| {
        format!(
            "`{}` is not the size of a fleet: write how many nodes it has, 1 to {MAX_MEMBERS}, or auto",
            hint::shorten(text)
        )
    })?;
    Ok(FleetSize::Nodes(nodes))
}

/// The longest name of a limit or a group in a fleet, in bytes.
pub(crate) const MAX_FLEET_NAME: usize = 200;

fn group(text: &str) -> Result<Arc<str>, String> {
    if text.is_empty() || text.len() > MAX_FLEET_NAME {
        return Err(format!(
            "a group has a name of 1 to {MAX_FLEET_NAME} bytes, the one that its nodes give (--fleet-group), \
             and this one has {}",
            text.len()
        ));
    }
    Ok(Arc::from(text))
}

fn nodes(text: &str) -> Result<NonZeroU32, String> {
    let number = whole(text)?;
    let nodes = u32::try_from(number)
        .ok()
        .filter(|nodes| *nodes <= MAX_NODES);
    nodes.and_then(NonZeroU32::new).ok_or_else(|| {
        format!("{number} nodes: write how many servers share the limits, 1 to {MAX_NODES}")
    })
}
